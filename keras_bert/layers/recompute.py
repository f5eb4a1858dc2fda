"""Activation recomputation: memory for time, and the same numbers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import keras


def recomputed(layer: keras.layers.Layer, call: Callable[..., Any], *inputs: Any) -> Any:
    """Calls `call(*inputs)`, and once more in the backward pass, which keeps only the inputs.

    `keras.remat` can't be used for this: on TensorFlow and torch it draws other dropout masks the
    second time, on JAX it refuses random layers, and under XLA on TensorFlow it saves nothing.
    Here the layer's weights and the states of its random generators go into the region as
    arguments and the new states come out of it, so that both passes draw the same.

    Args:
        layer: Whose variables `call` uses, and no others.
        call: Computes a tensor from tensors.
        *inputs: Tensors, or None.

    References:
        - [Chen et al., 2016](https://arxiv.org/abs/1604.06174), section 4.
    """
    variables = layer.variables
    states = [variable for variable in variables if variable.name == "seed_generator_state"]

    def pure(*arrays: Any) -> tuple[Any, ...]:
        mapping = zip(variables, arrays[: len(variables)], strict=True)
        given = iter(arrays[len(variables) :])
        with keras.StatelessScope(mapping, initialize_variables=False) as scope:
            output = call(*(None if x is None else next(given) for x in inputs))
        return output, *(scope.get_current_value(state) for state in states)

    arrays = [*(variable.value for variable in variables), *(x for x in inputs if x is not None)]
    # Each backend's way is a file of its own, and imports its backend alone.
    backend = importlib.import_module(f"keras_bert.layers.{keras.backend.backend()}_recompute")
    output, *new_states = backend.checkpoint(pure, *arrays)
    for state, value in zip(states, new_states, strict=True):
        state.assign(value)
    return output
