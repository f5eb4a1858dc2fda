"""Checkpoints: a model, its tokenizer and its labels in one folder, in any of four formats."""

from __future__ import annotations

import os
import pathlib
import warnings
from types import ModuleType

from keras_bert.checkpoints import google, hub, huggingface, keras_hub, preset
from keras_bert.checkpoints.parity import Report, max_difference
from keras_bert.checkpoints.preset import Preset, has_own_head
from keras_bert.errors import InputError
from keras_bert.tokenizer_checks import check_casing, check_rows

# A format's name -> the module that reads and writes it.
FORMATS: dict[str, ModuleType] = {
    "preset": preset,
    "huggingface": huggingface,
    "google": google,
    "keras_hub": keras_hub,
}
# The settings that Hugging Face's files have words for.
IN_HUGGINGFACE = {"max_sequence_length", "multi_label", "pooler"}


def load(folder: str | os.PathLike[str]) -> Preset:
    """Reads a checkpoint: our preset, a Hugging Face, a Google (TF1) or a KerasHub folder.

    Its files tell which it is. The preset's model is that of the heads in the checkpoint, or
    the encoder where there are none. In place of a folder, `hf://owner/name`,
    `hf://owner/name@revision` and `kaggle://owner/model/framework/variation` name one on a hub,
    and `gs://bucket/folder` or its like one on a store that fsspec knows.
    A tokenizer whose casing or size looks like another model's is warned about.

    Raises:
        InputError: the folder is none of them; a file is missing or damaged; a number, a tensor
            or a label isn't what it must be; a hub doesn't give what's named. The message names
            the file and the thing.
    """
    return load_with_report(folder)[0]


def load_with_report(folder: str | os.PathLike[str]) -> tuple[Preset, Report]:
    """`load`, and what became of every tensor."""
    folder = hub.local_folder(folder)
    try:
        loaded, report = FORMATS[format_of(folder)].read_with_report(folder)
    except InputError:
        raise
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"{folder} can't be read: {error}.") from error
    check_casing(loaded.tokenizer)
    check_rows(loaded.tokenizer, loaded.config)
    return loaded, report


def save(preset: Preset, folder: str | os.PathLike[str], format: str = "preset") -> None:
    """Writes a checkpoint in one of `FORMATS`; an older one there is replaced when it's whole.

    Hugging Face's has no room for most settings: a warning names those that are left out.

    Raises:
        InputError: the folder holds other files or is a hub's, or the format can't express the
            model.
        ValueError: there's no such format.
    """
    if format not in FORMATS:
        raise ValueError(
            f"`format` must be one of {', '.join(FORMATS)}. Received: format={format!r}."
        )
    if "://" in os.fspath(folder):
        raise InputError(f"{folder} must be a local folder, to be uploaded with the hub's tools.")
    if format in ("huggingface", "google") and has_own_head(preset):
        raise InputError(
            "The masked-LM head has its own activation or layer norm epsilon, as KerasHub's has, "
            f"and the format {format} has no word for it: save it as preset or keras_hub, or "
            "the encoder alone, `dataclasses.replace(preset, model=preset.encoder)`."
        )
    if format != "preset" and "crf" in [layer.name for layer in preset.model.layers]:
        raise InputError(f"The format {format} has no word for a CRF: save it as preset.")
    FORMATS[format].write(preset, folder)
    lost = [name for name in preset.settings if name not in IN_HUGGINGFACE]
    if format == "huggingface" and lost:
        warnings.warn(
            f"{folder}: the format huggingface has no word for the settings {', '.join(lost)}: "
            "what is loaded from there predicts without them.",
            stacklevel=2,
        )


def format_of(folder: str | os.PathLike[str]) -> str:
    """The name of a checkpoint's format, told by its files.

    Raises:
        InputError: they're no checkpoint's.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} isn't a folder: give that of a checkpoint, unpacked.")
    names = {path.name for path in folder.iterdir()}
    if preset.WEIGHTS in names:
        return "preset"
    if names & set(huggingface.WEIGHTS):
        return "huggingface"
    if names & {*keras_hub.WEIGHTS, keras_hub.SHARDED}:
        return "keras_hub"
    if "bert_config.json" in names or any(".ckpt" in name for name in names):
        return "google"
    raise InputError(
        f"{folder} isn't a checkpoint: it holds neither {preset.WEIGHTS} (a preset's), nor "
        f"{huggingface.WEIGHTS[0]} or {huggingface.WEIGHTS[-1]} (Hugging Face's), nor "
        f"{keras_hub.MODEL} (KerasHub's), nor bert_config.json (Google's)."
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
