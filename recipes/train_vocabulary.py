r"""Learn a WordPiece vocabulary from text.

    python recipes/train_vocabulary.py --input novel.txt speeches.txt \
        --vocabulary-size 8000 --lowercase --output vocab.txt

Expect: 13 seconds for a novel and twenty speeches (1.5 MB) on one CPU core.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import rich.console
import rich.progress

from keras_bert import recipe, remote
from keras_bert.data.vocabulary import train_vocabulary
from keras_bert.errors import InputError
from keras_bert.files import write_text


@dataclasses.dataclass(frozen=True)
class Args:
    """Learn a WordPiece vocabulary from text."""

    input: tuple[str, ...]
    """UTF-8 text files; `gs://` and its like are copied in first."""
    output: str
    """Where to write the vocabulary, a token a line."""
    vocabulary_size: int = 30522
    """The most tokens, the five special ones included."""
    lowercase: bool = True
    """Whether texts will be lower-cased (and stripped of accents): as the tokenizer will be."""
    overwrite: bool = False
    """Replace an output file that exists."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    started = time.perf_counter()
    if remote.is_remote(args.output):
        raise InputError(f"--output must be a local file. Received: {args.output}.")
    inputs = tuple(remote.local(path) for path in args.input)
    output = pathlib.Path(args.output)
    if output.is_dir() or any(output.resolve() == pathlib.Path(p).resolve() for p in args.input):
        raise InputError(f"--output must be a new file. Received: {output}, a folder or an input.")
    if output.exists() and not args.overwrite:
        raise InputError(f"{output} exists: pass --overwrite to replace it, or another --output.")
    if args.vocabulary_size < 10:
        raise InputError(
            f"--vocabulary-size must be at least 10. Received: {args.vocabulary_size}."
        )

    # ---- Train -----------------------------------------------------------------
    with rich.progress.Progress(
        console=rich.console.Console(stderr=True), transient=True
    ) as progress:
        lines = read_lines(inputs, progress)
        try:
            tokens = train_vocabulary(lines, args.vocabulary_size, args.lowercase)
        except InputError as error:
            raise InputError(f"{', '.join(args.input)}: {error}") from error

    # ---- Save ------------------------------------------------------------------
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, "".join(f"{token}\n" for token in tokens))
    return {"tokens": len(tokens), "seconds": round(time.perf_counter() - started, 2)}


def read_lines(paths: tuple[str, ...], progress: rich.progress.Progress) -> Iterator[str]:
    """The lines of the files, with a bar that counts bytes."""
    task = progress.add_task("Reading", total=sum(os.path.getsize(path) for path in paths))
    for path in paths:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"line {number} of {path} isn't UTF-8: convert the file."
                    ) from error
                progress.advance(task, len(line))
    progress.reset(task, description="Learning", total=None)


if __name__ == "__main__":
    recipe.run(main, Args)
