"""BERT for Keras 3, on TensorFlow, JAX and torch: text in, answers out."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from typing import Any

__version__ = "0.1.0"


def _check_installation() -> None:
    """Stops with one sentence where an import would go wrong in a puzzling way."""
    try:
        importlib.metadata.distribution("keras-bert")
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        raise ImportError(
            "The distribution keras-bert is another project with the same import name, "
            "keras_bert: run `pip uninstall keras-bert keras3-bert`, then "
            "`pip install keras3-bert`."
        )
    backends = ("tensorflow", "jax", "torch")
    if not any(importlib.util.find_spec(name) for name in backends):
        raise ImportError(
            "keras_bert needs a backend: run `pip install 'keras3-bert[tensorflow]'` "
            "(or [jax], or [torch]; then set KERAS_BACKEND to it)."
        )


def _is_command() -> bool:
    """Whether this is `python -m keras_bert`, whose doctor must run where the rest can't."""
    if sys.argv[:1] != ["-m"]:  # so it is while Python looks for the module
        return False
    own = next(place for place, each in enumerate(sys.orig_argv) if each.startswith("-m"))
    return "".join(sys.orig_argv[own : own + 2]) == "-mkeras_bert" or (
        sys.orig_argv[own] == "-mkeras_bert"
    )


if not _is_command():
    _check_installation()

    from keras_bert import checkpoints, layers, models, resizing, tasks, training
    from keras_bert.checkpoints import Preset, load, save
    from keras_bert.inference import answer, classify, embed, fill_mask, tag
    from keras_bert.models import BertConfig, bert
    from keras_bert.tokenizers import WordPiece

__all__ = [
    "BertConfig",
    "Preset",
    "WordPiece",
    "answer",
    "bert",
    "checkpoints",
    "classify",
    "data",
    "embed",
    "export_saved_model",
    "fill_mask",
    "layers",
    "load",
    "load_saved_model",
    "models",
    "resizing",
    "save",
    "tag",
    "tasks",
    "training",
]


def __getattr__(name: str) -> Any:
    # These need TensorFlow, which JAX and torch users may not have: first use imports them.
    if name == "data":
        return importlib.import_module("keras_bert.data")
    if name in ("export_saved_model", "load_saved_model"):
        return getattr(importlib.import_module("keras_bert.export"), name)
    raise AttributeError(f"module 'keras_bert' has no attribute {name!r}")
