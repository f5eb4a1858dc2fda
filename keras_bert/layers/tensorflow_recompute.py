"""Recomputation on TensorFlow, with XLA and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python.ops import control_flow_util


def checkpoint(function: Callable[..., tuple[Any, ...]], *arrays: Any) -> tuple[Any, ...]:
    """Calls `function(*arrays)`, of which the backward pass keeps `arrays` alone."""

    @tf.custom_gradient
    def region(*arrays: tf.Tensor) -> tuple[Any, Callable[..., list[Any]]]:
        def backward(*gradients: tf.Tensor) -> list[Any]:
            # Only the first output is differentiated: the others are states of generators.
            again = after(gradients[0], arrays)
            floats = [array for array in again if array.dtype.is_floating]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(floats)
                output, *_ = function(*again)
            found = iter(tape.gradient(output, floats, gradients[0], unconnected_gradients="zero"))
            return [next(found) if array.dtype.is_floating else None for array in again]

        return function(*arrays), backward

    return region(*(tf.convert_to_tensor(array) for array in arrays))


def after(gradient: tf.Tensor, arrays: tuple[tf.Tensor, ...]) -> list[tf.Tensor]:
    """The arrays, not to be had before the gradient.

    Without this a compiler sees the same products twice, and keeps those of the forward pass.
    """
    if tf.executing_eagerly():
        return list(arrays)
    # XLA doesn't respect control dependencies, and TensorFlow's own kernels have no barrier.
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return list(xla.optimization_barrier(*arrays, gradient)[:-1])
    with tf.control_dependencies([gradient]):
        return [tf.identity(array) for array in arrays]
