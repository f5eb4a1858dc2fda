r"""Convert a checkpoint: our preset, Hugging Face's, Google's (TF1) and KerasHub's folders.

    python recipes/convert.py --checkpoint uncased_L-12_H-768_A-12 --format huggingface \
        --output-dir bert-base-uncased
    python recipes/convert.py --checkpoint hf://google-bert/bert-base-uncased --format preset \
        --output-dir bert-base-uncased

Prints what became of every tensor and how far the outputs are apart after reading the result
back. It ends with an error where a tensor is left over or missing.

Expect: 9 seconds for BERT-Base; outputs differ by 0.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from typing import Any, Literal

from keras_bert import checkpoints, recipe
from keras_bert.errors import InputError


@dataclasses.dataclass(frozen=True)
class Args:
    """Convert a checkpoint between formats."""

    checkpoint: str
    """Folder to read; its files tell its format. Or `hf://owner/name`, or a `kaggle://` name."""
    format: Literal["preset", "huggingface", "google", "keras_hub"]
    """Format to write."""
    output_dir: str
    """Folder to write."""
    overwrite: bool = False
    """Replace a checkpoint of that format in `output_dir`."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    started = time.perf_counter()
    output_dir = recipe.local_folder(args.output_dir)
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"{output_dir} is a file: --output-dir must name a folder.")
    if output_dir.is_dir() and any(output_dir.iterdir()) and not args.overwrite:
        raise InputError(f"{output_dir} isn't empty: pass --overwrite, or another --output-dir.")
    if pathlib.Path(args.checkpoint).resolve().is_relative_to(output_dir.resolve()):
        raise InputError("--output-dir must be another folder than --checkpoint, and not hold it.")

    # ---- Model -----------------------------------------------------------------
    preset, report = checkpoints.load_with_report(args.checkpoint)

    # ---- Save ------------------------------------------------------------------
    checkpoints.save(preset, output_dir, args.format)
    again = checkpoints.load(output_dir)
    report.max_difference = checkpoints.max_difference(preset.model, again.model)
    print(report)
    return {
        "model": preset.model.name,
        "tensors_read": len(report.read),
        "weights_assigned": len(report.assigned),
        "tensors_dropped": len(report.dropped),
        "max_difference": report.max_difference,
        "seconds": round(time.perf_counter() - started, 1),
    }


if __name__ == "__main__":
    recipe.run(main, Args)
