"""Light forms of a preset: bfloat16, to be fast, and int8, to be small."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_bert.checkpoints import Preset
from keras_bert.checkpoints.preset import TASKS, build, task_of
from keras_bert.errors import InputError

PRECISIONS = ("float32", "bfloat16", "int8")


def light_preset(preset: Preset, precision: str) -> Preset:
    """The same preset on weights of its own, as they are in a light form.

    Args:
        preset: In float32, its model one of `keras_bert.tasks`.
        precision: "bfloat16": the encoder's weights are bfloat16, and it computes so; heads are
            float32. "int8": everything is float32, and large matrices have the values that int8
            can give them.

    Raises:
        InputError: the model isn't what `keras_bert.tasks` makes of the config.
    """
    try:
        task, arguments = task_of(preset)
        with dtype_policy("bfloat16" if precision == "bfloat16" else "float32"):
            encoder, _ = build(preset.config, "encoder", {})
        # The tied decoder multiplies the same table: logits need more digits than a state does.
        encoder.get_layer("token_embedding").reverse_dtype = "float32"
        with dtype_policy("float32"):
            model = encoder if task == "encoder" else TASKS[task](encoder, **arguments)
    except (KeyError, ValueError) as error:
        raise InputError(
            f"The preset has no light form: its model is one of its own. {error}"
        ) from error
    light = Preset(preset.config, encoder, preset.tokenizer, model, preset.labels, preset.settings)
    values, weights = weights_of(preset), weights_of(light)
    if {path: x.shape for path, x in values.items()} != {p: x.shape for p, x in weights.items()}:
        raise InputError(
            "The preset has no light form: its weights aren't those of a model that "
            "`keras_bert.tasks` makes of its config."
        )
    for path, weight in weights.items():
        value = keras.ops.convert_to_numpy(values[path].value)
        if precision == "int8" and (axis := summed_axis(path)) is not None:
            value = dequantized(*quantized(value, axis)).numpy()
        weight.assign(value)
    return light


@contextlib.contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Keras's policy for layers that are made meanwhile."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def weights_of(preset: Preset) -> dict[str, Any]:
    """The weights of the encoder and of the model by their paths."""
    return {weight.path: weight for weight in [*preset.encoder.weights, *preset.model.weights]}


def summed_axis(path: str) -> int | None:
    """The axis along which a large matrix is summed in products; None: the weight isn't one."""
    if path == "token_embedding/embeddings":
        return 1  # as a decoder too its rows are the outputs
    return 0 if path.endswith("/kernel") and path.startswith(("block_", "pooler/")) else None


def quantized(matrix: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The nearest multiples of a scale: int8, and float32 scales with 1 in place of `axis`.

    Symmetric: the largest magnitude along the axis is 127 scales, and 0 is 0.
    """
    scales = np.abs(matrix).max(axis=axis, keepdims=True) / np.float32(127)
    scales[scales == 0] = 1
    return np.clip(np.rint(matrix / scales), -127, 127).astype(np.int8), scales


def dequantized(values: Any, scales: Any) -> tf.Tensor:
    """What `quantized` stands for, in float32."""
    return tf.cast(values, tf.float32) * scales


class Int8Weight(tf.saved_model.experimental.TrackableResource):
    """A weight that's int8 in the folder, and float32 in memory once that's loaded.

    Signatures have captured the weight's variable, and in the SavedModel this takes its place. It
    isn't restored from the checkpoint but assigned once that's read, by the initializer that every
    loader runs, as lookup tables are. Like theirs, its memory is a process's until that ends.

    Args:
        variable: float32, with the values that the next two stand for.
        values: int8.
        scales: float32.
    """

    def __init__(self, variable: tf.Variable, values: np.ndarray, scales: np.ndarray) -> None:
        super().__init__()
        self._variable = variable
        self._name = f"int8_weight_{uuid.uuid4()}"
        self.stored = [tf.Variable(values), tf.Variable(scales)]
        assert self.resource_handle is variable.handle  # made here, and not when saving asks for it

    def _create_resource(self) -> tf.Tensor:
        if tf.executing_eagerly():
            return self._variable.handle
        # Python's loader adds a number of its own to the name.
        return tf.raw_ops.VarHandleOp(
            dtype=tf.float32, shape=self._variable.shape, shared_name=self._name
        )

    def _initialize(self) -> None:
        tf.raw_ops.AssignVariableOp(resource=self.resource_handle, value=dequantized(*self.stored))


def stored_weights(preset: Preset, light: Preset, precision: str) -> list[Any]:
    """What a SavedModel holds of the weights: the light form's variables, or their int8 forms.

    The variables alone: with the model would come its optimizer's.
    """
    stored: list[Any] = []
    exact = weights_of(preset)
    weights = [*light.encoder.weights, *light.model.weights]
    for weight in {id(each): each for each in weights}.values():
        axis = summed_axis(weight.path) if precision == "int8" else None
        if axis is None:
            stored.append(weight.value)
        else:
            value = keras.ops.convert_to_numpy(exact[weight.path].value)
            resource = Int8Weight(weight.value, *quantized(value, axis))
            stored += [resource, *resource.stored]
    return stored


def states_error(preset: Preset, light: Preset, inputs: Mapping[str, np.ndarray]) -> float:
    """The distance of a light form's states from float32's, as a part of their length.

    Args:
        preset: In float32.
        light: Its light form.
        inputs: int32 (B, T) each, the encoder's.
    """
    exact, found = (
        keras.ops.convert_to_numpy(
            keras.ops.cast(each.encoder(inputs, training=False)["sequence_output"], "float32")
        )[inputs["padding_mask"] > 0]
        for each in (preset, light)
    )
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def largest_difference(
    exact: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]
) -> float | None:
    """Of any two floats of the same outputs; None: there are none, as in a tagger's."""
    names = [name for name, x in exact.items() if x.dtype.kind == "f"]
    return max((float(np.abs(found[name] - exact[name]).max()) for name in names), default=None)
