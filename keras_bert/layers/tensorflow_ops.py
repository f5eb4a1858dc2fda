"""Operations that TensorFlow's CPU kernels compute faster in other words than Keras's."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

LEVELS = 2**16


def on_cpu() -> bool:
    """Whether there's no accelerator, which has fast random numbers and fuses the rest."""
    return not (tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.Tensor:
    """Zero at random places, the rest scaled to keep the mean.

    Args:
        x: Floats of any shape.
        rate: The share of zeros, rounded to 1 / 2^16.
        seed: int (2,).
    """
    dropped = min(round(rate * LEVELS), LEVELS - 1)
    count = tf.size(x)
    # Two numbers a word: words are what costs.
    words = tf.random.stateless_uniform(
        [(count + 1) // 2], tf.cast(seed, tf.int32), minval=None, maxval=None, dtype=tf.uint32
    )
    bits = tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:count]
    kept = tf.reshape(bits, tf.shape(x)) >= tf.constant(dropped, tf.uint16)
    scale = tf.constant(LEVELS / (LEVELS - dropped), x.dtype)
    return x * (tf.cast(kept, x.dtype) * scale)


@tf.custom_gradient
def gelu(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """The exact GELU x * P(x), whose backward pass keeps `x` alone and is one formula.

    It's dy * (P(x) + x * p(x)), with P and p the normal distribution and density. Half precision is
    widened for it: it has no digits to spare, and the CPU computes it no faster.
    """

    def backward(dy: tf.Tensor) -> tf.Tensor:
        wide = _widened(x)
        density = 1 / math.sqrt(2 * math.pi) * tf.exp(-0.5 * tf.square(wide))
        return tf.cast(_widened(dy) * (_distribution(wide) + wide * density), x.dtype)

    wide = _widened(x)
    return tf.cast(wide * _distribution(wide), x.dtype), backward


def _widened(x: tf.Tensor) -> tf.Tensor:
    return x if x.dtype.size >= 4 else tf.cast(x, tf.float32)


def _distribution(x: tf.Tensor) -> tf.Tensor:
    return 0.5 + 0.5 * tf.math.erf(math.sqrt(0.5) * x)
