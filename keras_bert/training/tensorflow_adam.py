"""Adam's update on TensorFlow: one pass over memory in place of a dozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# On a CPU, a variable of so many elements has its update compiled; below, it isn't worth the time.
COMPILED_FROM = 2**16


class Scaled(NamedTuple):
    """A gradient and the scalar that it's still to be multiplied by, in the update's own pass."""

    gradient: Any
    scale: Any


def clipped(gradients: Sequence[Any], norm: float, *, late: bool) -> list[Any]:
    """The gradients with a global norm of at most `norm`; NaN if theirs isn't finite.

    Args:
        gradients: Tensors.
        norm: The greatest.
        late: Whether to give `Scaled` back, for `adam_update`.
    """
    own = tf.sqrt(2 * tf.add_n([tf.nn.l2_loss(tf.cast(each, tf.float32)) for each in gradients]))
    scale = norm / tf.maximum(own, norm) + (own - own)
    scaled = [Scaled(each, scale) for each in gradients]
    return scaled if late else [multiplied(each) for each in scaled]


def multiplied(gradient: Any) -> Any:
    """The gradient as a tensor, whether it's `Scaled` or one already."""
    if isinstance(gradient, Scaled):
        return gradient.gradient * tf.cast(gradient.scale, gradient.gradient.dtype)
    return gradient


def adam_update(
    variable: Any,
    moments: tuple[Any, Any],
    gradient: Any,
    rate: Any,
    corrections: tuple[Any, Any],
    *,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
) -> None:
    """Updates the moments, and w = w - rate * ((m / c1) / (sqrt(v / c2) + epsilon) + decay * w).

    Args:
        variable: A float32 `tf.Variable`.
        moments: m and v, `keras.Variable`s of the same shape; updated too.
        gradient: Dense, of the same shape, or `Scaled`.
        rate: A scalar.
        corrections: c1 and c2, scalars.
        betas: b1 and b2, as `rounded` gives them.
        epsilon: Added to the corrected root.
        weight_decay: Times the rate, of the weight itself.
    """
    is_large = variable.shape.num_elements() >= COMPILED_FROM
    if is_large and "CPU" in variable.device and not tf.executing_eagerly():
        gradient, scale = gradient if isinstance(gradient, Scaled) else (gradient, 1.0)
        handles = (variable.handle, *(moment.value.handle for moment in moments))
        numbers = (scale, rate, *corrections, *betas, epsilon, weight_decay)
        _compiled(
            *handles,
            tf.cast(gradient, tf.float32),
            *(tf.cast(number, tf.float32) for number in numbers),
        )
        return
    m, v = moments
    c1, c2 = corrections
    root = tf.sqrt(c2)
    if weight_decay:
        variable.assign(variable * (1 - rate * weight_decay))
    # The kernel takes no corrections as such, but a rate and an epsilon: with the first times
    # sqrt(c2) / c1 and the second times sqrt(c2), its formula is this one. The powers of the
    # betas are the kernel's own corrections: at 0 it makes none.
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
        grad=tf.cast(multiplied(gradient), tf.float32),
    )


def rounded(beta: float) -> float:
    """The beta that the kernel computes with, in float32: 1 - 0.999 is 1.3e-5 off 0.001."""
    return float(np.float32(beta))


@tf.function(jit_compile=True, autograph=False)
def _compiled(
    variable: Any,
    m: Any,
    v: Any,
    gradient: Any,
    scale: Any,
    rate: Any,
    c1: Any,
    c2: Any,
    beta_1: Any,
    beta_2: Any,
    epsilon: Any,
    weight_decay: Any,
) -> None:
    """The update as XLA fuses it; compiled once for all variables of a shape.

    It takes the variables' handles: a traced function would hold on to variables themselves, and
    fail once they're gone.
    """
    gradient = gradient * scale
    old_m, old_v, old = (
        tf.raw_ops.ReadVariableOp(resource=each, dtype=tf.float32) for each in (m, v, variable)
    )
    new_m = old_m + (gradient - old_m) * (1 - beta_1)
    new_v = old_v + (tf.square(gradient) - old_v) * (1 - beta_2)
    direction = (new_m / c1) / (tf.sqrt(new_v / c2) + epsilon)
    new = old * (1 - rate * weight_decay) - rate * direction
    for handle, value in ((m, new_m), (v, new_v), (variable, new)):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
