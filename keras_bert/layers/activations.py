"""Activations by name; GELU in both of its forms."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import keras


@keras.saving.register_keras_serializable("keras_bert")
def gelu_tanh(x: Any) -> Any:
    """The tanh approximation of GELU, which Google's code has used since February 2019.

    References:
        - [Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415), section 2.
    """
    return keras.activations.gelu(x, approximate=True)


def activation(name: str | Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Looks an activation up: `"gelu"` is the exact erf form, `"gelu_tanh"` its approximation.

    Any other name is Keras's. The two GELUs differ by up to 4.7e-4, so a checkpoint has to
    keep the one it was trained with.
    """
    if name in ("gelu_tanh", "gelu_new"):
        return gelu_tanh
    return keras.activations.get(name)


def in_training(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same activation, where it has a faster backward pass: the exact GELU on TensorFlow.

    Not for inference, where TensorFlow fuses Keras's form into the product before it.
    """
    if function is keras.activations.gelu and keras.backend.backend() == "tensorflow":
        gelu: Callable[[Any], Any] = importlib.import_module(
            "keras_bert.layers.tensorflow_ops"
        ).gelu
        return gelu
    return function
