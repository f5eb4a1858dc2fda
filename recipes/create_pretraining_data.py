r"""Turn text into examples to pretrain BERT on: sentence pairs in TFRecord shards.

    python recipes/create_pretraining_data.py --input novel.txt speeches.txt \
        --document-break heading blank --vocabulary vocab.txt --lowercase \
        --max-sequence-length 128 --output-dir data/en128

An input is a file, a folder, a pattern (`'wiki/**/wiki_*'`) or a URL (`gs://bucket/texts`): plain
text, WikiExtractor's output, JSON lines or Parquet with a `text`, compressed (.gz) or not. It's
read as a stream, in memory that doesn't grow with it, and turned into examples by as many
processes as there are cores; the bytes are the same for any number. Killed, the run goes on where
it was when the same command is given with --resume; but where the output folder is on a store,
nothing arrives there before the end, and a killed run starts anew. Tokens are masked later, anew
for each batch of `pretrain.py`, so one folder serves any number of passes.

Expect: 2 million tokens of English a second and core after 4 seconds of imports (1 GB of text:
100 core-seconds), 800 MB of memory a process, nearly all of them imports, and beside the output
as much room again on disk until it's done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import rich.console
import rich.progress
import rich.table

from keras_bert import WordPiece, recipe, remote
from keras_bert.data import (
    batches,
    beam,
    creation,
    google_records,
    processes,
    records,
    statistics,
)
from keras_bert.data.documents import DocumentBreak
from keras_bert.data.examples import MIN_SEQUENCE_LENGTH, PairMode
from keras_bert.data.sources import Source, find_files
from keras_bert.errors import InputError
from keras_bert.files import write_json
from keras_bert.tokenizer_checks import check_casing, check_unknown

LONGEST = 65_536  # tokens of an example: no position table goes as far
# Of the settings, these leave the examples as they are.
NOT_OF_THE_DATA = (
    *("vocabulary", "output_dir", "workers", "runner", "beam_options", "resume", "overwrite"),
    "static_masking",
)


@dataclasses.dataclass(frozen=True)
class Args:
    """Turn text into examples to pretrain BERT on."""

    input: tuple[str, ...]
    """UTF-8 texts: files, folders, patterns, URLs."""
    vocabulary: str
    """vocab.txt, one token a line, with [PAD] [UNK] [CLS] [SEP] [MASK]."""
    output_dir: str
    """Where shards, vocabulary and manifest go; held-out documents in a folder dev inside."""
    lowercase: bool = True
    """Whether to lower-case the text: as the vocabulary was made."""
    max_sequence_length: int = 128
    """Tokens in the longest example, [CLS] and [SEP] included."""
    short_sequence_probability: float = 0.1
    """Share of examples that are made shorter on purpose."""
    pairs: PairMode = "next_sentence"
    """Half of B random (BERT), half of the pairs swapped (ALBERT), or no pairs (RoBERTa)."""
    duplicates: int = 1
    """Times that the text is paired anew, as Google's dupe factor."""
    document_break: tuple[DocumentBreak, ...] = ("blank",)
    """What ends a document in plain text: a blank line, the line before a heading, or the file's
    end; one value for all inputs or one for each."""
    unwrap: bool = False
    """Join hard-wrapped lines: a paragraph ends at a blank line, not at each line."""
    words: bool = False
    """The text is words with spaces between them, as a segmenter leaves Chinese; the spaces are
    taken out and the words kept for whole-word masking."""
    static_masking: int = 0
    """Copies to mask once and for all, for other code: Google's records in a folder static."""
    deduplicate: bool = False
    """Leave out exact copies of earlier documents."""
    min_document_length: int = 0
    """Leave out documents of fewer characters."""
    dev_documents: tuple[int, ...] = (0,)
    """Last documents of an input to hold out; one number for all inputs or one for each."""
    workers: int | None = None
    """Processes; None: as many as cores. The result is the same for any number."""
    seed: int = 0
    """For pairs, lengths and order."""
    runner: beam.Runner | None = None
    """Make the data by Apache Beam instead, for corpora past one machine; its own options, such
    as --project, go into --beam-options."""
    beam_options: tuple[str, ...] = ()
    """For the runner, as in --beam-options=--project=mine."""
    resume: bool = False
    """Go on with a run that was stopped."""
    overwrite: bool = False
    """Replace the output folder, once all text has been read; with Beam at once."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    started = time.perf_counter()
    # Beam's workers write to a store themselves; otherwise it has a working copy here.
    is_remote = args.runner is not None and remote.is_remote(args.output_dir)
    folder = pathlib.Path(args.output_dir) if is_remote else recipe.local_folder(args.output_dir)
    if not is_remote:
        recipe.check_output_dir(args.output_dir, overwrite=args.overwrite, resume=args.resume)
    check_args(args)
    tokenizer = WordPiece(remote.local(args.vocabulary), lowercase=args.lowercase)
    if tokenizer.vocabulary_size == len(tokenizer.special_ids):
        raise InputError(f"{args.vocabulary} holds nothing but special tokens.")
    if not args.resume:
        check_casing(tokenizer)
    corpus = find_corpus(args)
    names = [field.name for field in dataclasses.fields(creation.Settings)]
    settings = creation.Settings(**{name: getattr(args, name) for name in names})

    # ---- Data ------------------------------------------------------------------
    if args.resume and processes.is_complete(folder):
        start_run(args, [], tokenizer)  # refuses the folder of another command
        records.check_manifest(records.read_manifest(folder), folder, tokenizer=tokenizer)
        return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    if args.runner is not None:
        if not is_remote:
            start_run(args, [], tokenizer)
        output = args.output_dir if is_remote else os.fspath(folder)
        made = beam.create(corpus, settings, tokenizer, output, args.runner, args.beam_options)
    else:
        with show_progress() as report:
            made = processes.create(
                corpus,
                settings,
                tokenizer,
                folder,
                args.workers or os.cpu_count() or 1,
                resume=args.resume,
                start=lambda blocks: start_run(args, blocks, tokenizer, keep=folder),
                replace=lambda: recipe.start_run(args.output_dir, stored(args), overwrite=True),
                report=report,
            )

    # ---- Save ------------------------------------------------------------------
    metrics = {split: summary(of_split.counts, args) for split, of_split in made.items()}
    metrics = metrics.pop("train") | metrics
    metrics["seconds"] = round(time.perf_counter() - started, 1)
    if is_remote:
        beam.write_metrics(args.output_dir, metrics)
    else:
        write_json(folder / "metrics.json", metrics)
    write_manifests(args.output_dir if is_remote else os.fspath(folder), args, made, tokenizer)
    lines = []
    if not is_remote:
        if args.static_masking:
            write_static(folder, args, metrics["examples"])
        lines = statistics.write_page(folder, made, metrics, tokenizer, recipe.command())
        processes.clear_up(folder)
    show(metrics, lines[:3])
    return metrics


def summary(counts: Mapping[str, int], args: Args) -> dict[str, Any]:
    totals = {name: n for name, n in counts.items() if not name.startswith("length ")}
    return totals | statistics.shares(counts, args.max_sequence_length)


def write_static(folder: pathlib.Path, args: Args, num_examples: int) -> None:
    """Copies of the examples, masked once and for all: a folder `static` of Google's records."""
    with show_progress() as report:

        def copies() -> Iterator[Any]:
            for copy in range(args.static_masking):
                report("Masking", copy, args.static_masking)
                yield from batches.pretraining(folder, 512, args.seed + copy, training=False)
            report("Masking", args.static_masking, args.static_masking)

        num_shards = creation.num_shards(num_examples * args.static_masking)
        google_records.write(copies(), folder / "static", num_shards)


def write_manifests(
    output_dir: str, args: Args, made: dict[str, creation.Made], tokenizer: WordPiece
) -> None:
    of_data = dataclasses.asdict(args)
    of_data["input"] = [os.path.basename(path.rstrip("/")) for path in args.input]
    for name in NOT_OF_THE_DATA:
        del of_data[name]
    for split, (counts, shards) in sorted(made.items()):  # that of the whole folder comes last
        records.write_manifest(
            f"{output_dir}/dev" if split == "dev" else output_dir,
            settings=of_data,
            tokenizer=tokenizer,
            counts={name: n for name, n in counts.items() if not name.startswith("length ")},
            shards=dict(shards),
        )


def check_args(args: Args) -> None:
    if not args.input:
        raise InputError("--input needs at least one file.")
    if not MIN_SEQUENCE_LENGTH <= args.max_sequence_length <= LONGEST:
        raise InputError(
            f"--max-sequence-length must be at least {MIN_SEQUENCE_LENGTH} and at most {LONGEST}. "
            f"Received: {args.max_sequence_length}."
        )
    if not 0 <= args.short_sequence_probability <= 1:
        raise InputError(
            "--short-sequence-probability must be between 0 and 1. "
            f"Received: {args.short_sequence_probability}."
        )
    if min(args.duplicates, 1 if args.workers is None else args.workers) < 1:
        raise InputError("--workers and --duplicates must be at least 1.")
    counts = args.seed, args.min_document_length, args.static_masking
    if min(*args.dev_documents, *counts) < 0:
        raise InputError(
            "--dev-documents, --seed, --min-document-length and --static-masking must be at "
            "least 0."
        )
    if args.static_masking and args.pairs == "full_sentences":
        raise InputError(
            "--static-masking needs pairs, since Google's records can't say that there are none: "
            "leave it or --pairs full_sentences out."
        )
    if args.runner is not None:
        check_runner(args)


def check_runner(args: Args) -> None:
    if args.static_masking:
        raise InputError("--static-masking runs on one machine: leave it or --runner out.")
    if args.resume:
        raise InputError("--runner starts anew each time: give --overwrite in place of --resume.")
    here = [path for path in (*args.input, args.output_dir) if "://" not in path]
    if args.runner == "DataflowRunner" and here:
        raise InputError(
            f"{here[0]} is on this machine, and DataflowRunner's workers are others: give "
            "addresses such as gs://bucket/folder."
        )
    if remote.is_remote(args.output_dir) and not args.overwrite:
        found = beam.earlier_files(args.output_dir)
        if found:
            raise InputError(f"{found[0]} is there: pass --overwrite, or another --output-dir.")


def one_for_each(flag: str, values: Sequence[Any], inputs: Sequence[str]) -> list[Any]:
    if len(values) not in (1, len(inputs)):
        raise InputError(
            f"{flag} takes one value for all inputs or one for each. "
            f"Received: {len(values)} values for {len(inputs)} inputs."
        )
    return list(values) * len(inputs) if len(values) == 1 else list(values)


def find_corpus(args: Args) -> creation.Corpus:
    document_breaks = one_for_each("--document-break", args.document_break, args.input)
    dev_documents = one_for_each("--dev-documents", args.dev_documents, args.input)
    if sum(dev_documents) == 1 and args.pairs == "next_sentence":
        raise InputError(
            "--dev-documents must hold out two documents or more, since a random next sentence "
            "comes from another one. Received: 1."
        )
    output = pathlib.Path(args.output_dir).resolve()
    for name in args.input:
        is_around = os.path.isdir(name) and output.is_relative_to(pathlib.Path(name).resolve())
        if is_around and "://" not in args.output_dir:
            raise InputError(
                f"{args.output_dir} lies in the input {name} and would be read as text when the "
                "command is given again: choose another --output-dir."
            )
    files = [
        Source(path, size, document_breaks[work], args.unwrap, work)
        for work, name in enumerate(args.input)
        for path, size in find_files(name)
    ]
    return creation.Corpus(files, args.input, dev_documents)


def stored(args: Args) -> Args:
    """What `args.json` keeps: a run may be resumed with other workers, which change nothing."""
    return dataclasses.replace(args, workers=None)


def start_run(
    args: Args,
    blocks: list[creation.Block],
    tokenizer: WordPiece,
    keep: pathlib.Path | None = None,
) -> None:
    """Makes the folder; with `--overwrite`, the data in `keep` stay until all text is read."""
    texts = (text for block in blocks for document in block.documents for text in document[0])
    check_unknown(tokenizer, itertools.islice(texts, 2000))
    if args.overwrite and keep is not None and keep.is_dir():
        recipe.keep_what_is_read(keep, args)
        processes.begin_replacing(keep)
        return
    recipe.start_run(args.output_dir, stored(args), overwrite=args.overwrite, resume=args.resume)


@contextlib.contextmanager
def show_progress() -> Iterator[Callable[[str, float, float], None]]:
    columns = [*rich.progress.Progress.get_default_columns(), rich.progress.TimeElapsedColumn()]
    with rich.progress.Progress(*columns, console=rich.console.Console(stderr=True)) as progress:
        bars: dict[str, rich.progress.TaskID] = {}

        def report(name: str, done: float, total: float) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name)
            progress.update(bars[name], completed=done, total=total)

        yield report


def show(metrics: dict[str, Any], lines: list[str]) -> None:
    table = rich.table.Table("", "train", *(["dev"] if "dev" in metrics else []))
    for name, *values in statistics.rows_of(metrics):
        table.add_row(name, *(f"{x:,}" if isinstance(x, int) else f"{x:.4f}" for x in values))
    rich.console.Console().print(table)
    print("", *lines, sep="\n\n")


if __name__ == "__main__":
    recipe.run(main, Args)
