"""Checkpoints: a model, its tokenizer and its labels in one folder, in any of three formats."""

from __future__ import annotations

import os
import pathlib
from types import ModuleType

from keras_bert.checkpoints import google, huggingface, preset
from keras_bert.checkpoints.parity import Report, max_difference
from keras_bert.checkpoints.preset import Preset
from keras_bert.errors import InputError

# A format's name -> the module that reads and writes it.
FORMATS: dict[str, ModuleType] = {
    "preset": preset,
    "huggingface": huggingface,
    "google": google,
}


def load(folder: str | os.PathLike[str]) -> Preset:
    """Reads a checkpoint: our preset, a Hugging Face or a Google (TF1) folder.

    Its files tell which it is. The preset's model is that of the heads in the checkpoint, or
    the encoder where there are none.

    Raises:
        InputError: the folder is none of them; a file is missing or damaged; a number, a tensor
            or a label isn't what it must be. The message names the file and the thing.
    """
    return load_with_report(folder)[0]


def load_with_report(folder: str | os.PathLike[str]) -> tuple[Preset, Report]:
    """`load`, and what became of every tensor."""
    return FORMATS[format_of(folder)].read_with_report(folder)


def save(preset: Preset, folder: str | os.PathLike[str], format: str = "preset") -> None:
    """Writes a checkpoint in one of `FORMATS`; an older one there is replaced when it's whole.

    Raises:
        InputError: the folder holds other files, or the format can't express the model.
        ValueError: there's no such format.
    """
    if format not in FORMATS:
        raise ValueError(
            f"`format` must be one of {', '.join(FORMATS)}. Received: format={format!r}."
        )
    FORMATS[format].write(preset, folder)


def format_of(folder: str | os.PathLike[str]) -> str:
    """The name of a checkpoint's format, told by its files.

    Raises:
        InputError: they're no checkpoint's.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} isn't a folder: give that of a checkpoint.")
    names = {path.name for path in folder.iterdir()}
    if preset.WEIGHTS in names:
        return "preset"
    if names & set(huggingface.WEIGHTS):
        return "huggingface"
    if "bert_config.json" in names or any(".ckpt" in name for name in names):
        return "google"
    raise InputError(
        f"{folder} isn't a checkpoint: it holds neither {preset.WEIGHTS} (a preset's), nor "
        f"{huggingface.WEIGHTS[0]} or {huggingface.WEIGHTS[-1]} (Hugging Face's), nor "
        "bert_config.json (Google's)."
    )


__all__ = [
    "FORMATS",
    "Preset",
    "Report",
    "format_of",
    "load",
    "load_with_report",
    "max_difference",
    "save",
]
