"""Exports of encoders: a vector for each text."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_bert.checkpoints import Preset
from keras_bert.export.rows import Output, computed, make_rows
from keras_bert.export.signatures import Signature, Tensors, id_signatures, text_signature

TINY = np.finfo(np.float32).tiny  # a vector of zeros stays one


def signatures(preset: Preset) -> dict[str, Signature]:
    """`ids` and `text`: what `inference.embed` says by the preset's settings."""
    tokenizer, settings = preset.tokenizer, preset.settings
    longest = preset.max_sequence_length

    def embedded(inputs: Tensors, real: tf.Tensor) -> Tensors:
        states = tf.cast(preset.encoder(inputs, training=False)["sequence_output"], tf.float32)
        vectors = pooled(states, real, settings.get("pooling", "mean"))
        if settings.get("normalize", True):
            vectors /= tf.maximum(tf.norm(vectors, axis=-1, keepdims=True), TINY)
        return {"embedding": vectors}

    def from_text(text: tf.Tensor) -> Tensors:
        rows = make_rows(tokenizer, tokenizer.to_tf(text, core_ops=True)[:, : longest - 2])
        spec = tf.TensorSpec((None, preset.config.hidden_dim), tf.float32)
        return computed(preset, rows, embedded, {"embedding": Output(spec)})

    return id_signatures(preset, embedded) | text_signature("text", from_text)


def pooled(states: tf.Tensor, real: tf.Tensor, pooling: str) -> tf.Tensor:
    """One vector of a row's states, float (B, T, D): (B, D)."""
    if pooling == "cls":
        return states[:, 0]
    mask = real[:, :, None]
    if pooling == "max":
        return tf.reduce_max(tf.where(mask, states, states.dtype.min), axis=1)
    total = tf.reduce_sum(tf.where(mask, states, 0.0), axis=1)
    return total / tf.reduce_sum(tf.cast(mask, states.dtype), axis=1)
