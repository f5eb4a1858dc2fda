"""Adam's update by TensorFlow's own kernel: one pass over memory in place of a dozen."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


def adam_update(
    variable: Any,
    moments: tuple[Any, Any],
    gradient: Any,
    rate: Any,
    corrections: tuple[Any, Any],
    *,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Updates the moments, and w = w - rate * (m / c1) / (sqrt(v / c2) + epsilon).

    The kernel takes no corrections as such, but a rate and an epsilon: with the first times
    sqrt(c2) / c1 and the second times sqrt(c2), its formula is this one.

    Args:
        variable: A float32 `tf.Variable`.
        moments: m and v, `keras.Variable`s of the same shape; updated too.
        gradient: Dense, of the same shape.
        rate: A scalar.
        corrections: c1 and c2, scalars.
        betas: b1 and b2, as `rounded` gives them.
        epsilon: Added to the corrected root.
    """
    m, v = moments
    c1, c2 = corrections
    root = tf.sqrt(c2)
    # The powers of the betas are the kernel's own corrections: at 0 it makes none.
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=m.value.handle,
        v=v.value.handle,
        beta1_power=0.0,
        beta2_power=0.0,
        lr=rate * root / c1,
        beta1=betas[0],
        beta2=betas[1],
        epsilon=epsilon * root,
        grad=tf.cast(gradient, variable.dtype),
    )


def rounded(beta: float) -> float:
    """The beta that the kernel computes with, in float32: 1 - 0.999 is 1.3e-5 off 0.001."""
    return float(np.float32(beta))
