r"""Export a preset as a SavedModel that takes text and gives answers: for TensorFlow Serving.

    python recipes/export.py --checkpoint runs/topics/preset --output-dir exports/topics

Writes `exports/topics/1/`, or the next version where there's one, after a fresh process with
TensorFlow alone has asked it the same as the preset. What it can be asked, and how, is in
`exports/topics/1/signature.md`. In Python:

    exported = keras_bert.load_saved_model("exports/topics")
    exported("How do I format a string?")

`--precision int8` makes the folder a quarter as large, `--precision bfloat16` makes it half as
large and, on CPUs that multiply bfloat16, faster: see docs/serving.md. The last line then tells
how far the scores are from float32's on a few texts. `--litert` also writes a file for phones,
`exports/topics/topics.tflite`.

Expect: 6 seconds, most of them the check; 5 MB for a tiny BERT of 3,300 tokens.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import time
from typing import Any

import keras_bert
from keras_bert import recipe
from keras_bert.errors import InputError
from keras_bert.export import PRECISIONS, check_exportable, export_litert, versions
from keras_bert.export.signatures import DESCRIPTION
from keras_bert.files import write_json


@dataclasses.dataclass(frozen=True)
class Args:
    """Export a preset as a SavedModel that takes text and gives answers."""

    checkpoint: str
    """Preset of any task: classes, tags, answers, masked words or vectors."""
    output_dir: str
    """Where the folder 1 with the model goes, or 2 beside it; its name is the model's."""
    precision: str = "float32"
    """float32; bfloat16, to be fast where the CPU multiplies it; int8, to be small."""
    litert: bool = False
    """Write the model as a LiteRT file too, ids in and logits or vectors out: float32 or int8."""
    overwrite: bool = False
    """Remove the other versions in `output_dir` once the new one is there."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    started = time.perf_counter()
    folder = recipe.local_folder(args.output_dir)
    there = versions(folder)
    if not there:
        recipe.check_output_dir(args.output_dir, overwrite=args.overwrite)
    if args.precision not in PRECISIONS:
        raise InputError(f"--precision must be one of {', '.join(PRECISIONS)}: {args.precision}.")
    if args.litert and args.precision == "bfloat16":
        raise InputError("A LiteRT file is in float32 or int8: leave --litert or bfloat16 out.")
    preset = keras_bert.load(args.checkpoint)
    check_exportable(preset)

    # ---- Save ------------------------------------------------------------------
    if not there:
        recipe.start_run(args.output_dir, args, overwrite=args.overwrite)
    target = keras_bert.export_saved_model(preset, folder, args.precision)
    path = folder / f"{folder.resolve().name}.tflite"
    written = {}
    if args.litert:
        written = export_litert(preset, path, "int8" if args.precision == "int8" else None)
    write_json(folder / "args.json", dataclasses.asdict(args))
    if args.overwrite:  # a server may be at the old ones until the new one is there
        for old in there:
            shutil.rmtree(old)
        if not args.litert:
            path.unlink(missing_ok=True)
    print(f"How to ask it: {target / 'signature.md'}")
    metrics = {"saved_model": str(target), "megabytes": megabytes(target)}
    if args.precision != "float32":
        described = json.loads((target / DESCRIPTION).read_text(encoding="utf-8"))
        metrics |= {name: described[name] for name in ("largest_difference", "states_error")}
    if written:
        metrics |= {"litert": str(path)} | {f"litert_{name}": x for name, x in written.items()}
    return metrics | {"seconds": round(time.perf_counter() - started, 1)}


def megabytes(folder: pathlib.Path) -> float:
    """The size of a folder's files."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return round(sum(sizes) / 1e6, 1)


if __name__ == "__main__":
    recipe.run(main, Args)
