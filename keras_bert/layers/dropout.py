"""Dropout, by fewer random bits where they cost time."""

from __future__ import annotations

import importlib
from typing import Any

import keras


@keras.saving.register_keras_serializable("keras_bert")
class Dropout(keras.layers.Dropout):
    """Keras's dropout; on TensorFlow without an accelerator, 16 random bits decide an element.

    There a float drawn for each element costs more than the rest of the layer, and in bfloat16 it
    has but 7 bits: a rate of 0.1 is 0.102 with them, 0.10001 with 16. What's kept is multiplied by
    the inverse of its exact share, so the mean stays.

    References:
        - [Srivastava et al., 2014](https://jmlr.org/papers/v15/srivastava14a.html), section 4.
    """

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        is_plain = 0 < self.rate < 1 and self.noise_shape is None
        if training and is_plain and keras.backend.backend() == "tensorflow":
            ours = importlib.import_module("keras_bert.layers.tensorflow_ops")
            if ours.on_cpu():
                return ours.dropout(inputs, self.rate, self.seed_generator.next())
        return super().call(inputs, training=training)
