r"""Export a preset as a SavedModel that takes text and gives answers: for TensorFlow Serving.

    python recipes/export.py --checkpoint runs/topics/preset --output-dir exports/topics

Writes `exports/topics/1/`, or the next version where there's one, after a fresh process with
TensorFlow alone has asked it the same as the preset. What it can be asked, and how, is in
`exports/topics/1/signature.md`. In Python:

    exported = keras_bert.load_saved_model("exports/topics")
    exported("How do I format a string?")

Expect: 6 seconds, most of them the check; 5 MB for a tiny BERT of 3,300 tokens.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from typing import Any

import keras_bert
from keras_bert import recipe
from keras_bert.export import check_exportable, versions
from keras_bert.files import write_json


@dataclasses.dataclass(frozen=True)
class Args:
    """Export a preset as a SavedModel that takes text and gives answers."""

    checkpoint: str
    """Preset of any task: classes, tags, answers, masked words or vectors."""
    output_dir: str
    """Where the folder 1 with the model goes, or 2 beside it; its name is the model's."""
    overwrite: bool = False
    """Remove the other versions in `output_dir` once the new one is there."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    started = time.perf_counter()
    folder = recipe.local_folder(args.output_dir)
    there = versions(folder)
    if not there:
        recipe.check_output_dir(args.output_dir, overwrite=args.overwrite)
    preset = keras_bert.load(args.checkpoint)
    check_exportable(preset)

    # ---- Save ------------------------------------------------------------------
    if not there:
        recipe.start_run(args.output_dir, args, overwrite=args.overwrite)
    target = keras_bert.export_saved_model(preset, folder)
    write_json(folder / "args.json", dataclasses.asdict(args))
    if args.overwrite:  # a server may be at the old ones until the new one is there
        for old in there:
            shutil.rmtree(old)
    size = sum(
        os.path.getsize(os.path.join(place, name))
        for place, _, names in os.walk(target)
        for name in names
    )
    print(f"How to ask it: {target / 'signature.md'}")
    return {
        "saved_model": str(target),
        "megabytes": round(size / 1e6, 1),
        "seconds": round(time.perf_counter() - started, 1),
    }


if __name__ == "__main__":
    recipe.run(main, Args)
