"""A preset's model as a file for LiteRT, once TensorFlow Lite: ids in, logits or vectors out."""

from __future__ import annotations

import os
import pathlib
import secrets
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_bert.checkpoints import Preset
from keras_bert.export.embedding import TINY, pooled
from keras_bert.export.samples import TEXTS, id_inputs
from keras_bert.export.saved_model import check_exportable, task_of
from keras_bert.export.self_check import ExportError
from keras_bert.export.signatures import IDS, Tensors

QUANTIZED = (None, "int8")
# Of an output's length. Float32 kernels other than TensorFlow's differ by some 1e-6.
TOLERANCES = {None: 1e-4, "int8": 0.25}


def export_litert(
    preset: Preset,
    path: str | os.PathLike[str],
    quantize: str | None = None,
    length: int | None = None,
) -> dict[str, float]:
    """Writes a preset's model as a `.tflite` file, for phones and other small machines.

    The file takes one row of T tokens, T being fixed, and needs LiteRT's own ops alone. Its one
    signature, `serving_default`, has the inputs token_ids, segment_ids and padding_mask: int32
    (1, T), and, of masked language models, mask_positions: int32 (1, 1), the place of a [MASK].
    Outputs, float32, are the model's own, such as `label` (1, C), logits, or `start` and `end`
    (1, T); an encoder's is `embedding` (1, D), as `keras_bert.embed` has it. The tokenizer isn't
    in it.

    Args:
        preset: In float32.
        path: The file, whose name ends in `.tflite`; an old one is replaced.
        quantize: None: float32. "int8": LiteRT's dynamic range, in which large weights are stored
            in int8 and multiplied so; a quarter of the size.
        length: T; None: the preset's `max_sequence_length`.

    Returns:
        `error`, the distance of the file's outputs from the preset's, as a part of their length,
        on the texts of the export's check; and `megabytes`.

    Raises:
        ExportError: the file answers otherwise than the preset: the error is above 1e-4, or with
            int8 above 0.25. No file is left.
        InputError: as `export_saved_model`.
        ValueError: an argument isn't one of those above.
    """
    path = pathlib.Path(path)
    longest = preset.max_sequence_length
    length = longest if length is None else length
    if path.suffix != ".tflite":
        raise ValueError(f"`path` must end in .tflite. Received: path={str(path)!r}.")
    if quantize not in QUANTIZED:
        raise ValueError(f'`quantize` must be None or "int8". Received: quantize={quantize!r}.')
    if not 3 <= length <= preset.config.max_sequence_length:
        raise ValueError(
            f"`length` must be from 3 to {preset.config.max_sequence_length}, the rows of the "
            f"table of positions. Received: length={length}."
        )
    check_exportable(preset)
    function = _traced(preset, length)
    content = _converted(function, preset, quantize)
    error = _error(content, function, _rows(preset, length))
    if not error < TOLERANCES[quantize]:
        raise ExportError(f"The LiteRT file's outputs are off by {error:.2g} of their length.")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return {"error": error, "megabytes": round(len(content) / 1e6, 1)}


def _traced(preset: Preset, length: int) -> tf.types.experimental.ConcreteFunction:
    """The function of the file's signature; its weights are constants."""

    def outputs(**inputs: tf.Tensor) -> Tensors:
        with keras.StatelessScope([(each, tf.constant(x)) for each, x in values]):
            return computed(inputs)

    def computed(inputs: Tensors) -> Tensors:
        if task_of(preset) != "sentence_embedder":
            found = preset.model(inputs, training=False)
            return {name: tf.cast(found[name], tf.float32) for name in found}
        states = preset.encoder(inputs, training=False)["sequence_output"]
        vectors = pooled(states, inputs["padding_mask"] > 0, preset.settings.get("pooling", "mean"))
        if preset.settings.get("normalize", True):
            vectors /= tf.maximum(tf.norm(vectors, axis=-1, keepdims=True), TINY)
        return {"embedding": vectors}

    weights = [*preset.encoder.weights, *preset.model.weights]
    values = [(each, keras.ops.convert_to_numpy(each.value)) for each in weights]
    specs = {name: tf.TensorSpec((1, length), tf.int32, name) for name in IDS}
    if "mask_positions" in preset.model.input:
        specs["mask_positions"] = tf.TensorSpec((1, 1), tf.int32, "mask_positions")
    return tf.function(outputs, autograph=False).get_concrete_function(**specs)


def _converted(
    function: tf.types.experimental.ConcreteFunction, preset: Preset, quantize: str | None
) -> bytes:
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], preset.model)
    if quantize:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    content: bytes = converter.convert()
    return content


def _rows(preset: Preset, length: int) -> list[dict[str, np.ndarray]]:
    """Rows of the check's texts, cut at the length."""
    inputs, _ = id_inputs(preset, task_of(preset), len(TEXTS), set(IDS))
    rows = []
    for row in range(len(inputs["token_ids"])):
        one = {name: x[row : row + 1] for name, x in inputs.items()}
        size = min(length, int(one["padding_mask"].sum()))  # numbers are compared, not texts
        one = {name: np.pad(x[:, :size], [(0, 0), (0, length - size)]) for name, x in one.items()}
        one["token_ids"][:, size:] = preset.tokenizer.pad_id
        if "mask_positions" in preset.model.input:
            one["mask_positions"] = np.ones((1, 1), np.int32)
        rows.append(one)
    return rows


def _error(
    content: bytes,
    function: tf.types.experimental.ConcreteFunction,
    rows: list[dict[str, np.ndarray]],
) -> float:
    """How far the file's outputs are from the function's: the worst of all outputs."""
    runner = interpreter(content).get_signature_runner()
    found = [runner(**row) for row in rows]
    exact = [function(**{name: tf.constant(x) for name, x in row.items()}) for row in rows]
    errors = []
    for name in exact[0]:
        theirs = np.concatenate([row[name].numpy().ravel() for row in exact])
        ours = np.concatenate([row[name].ravel() for row in found])
        errors.append(float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)))
    return max(errors)


def interpreter(content: bytes) -> Any:
    """TensorFlow's own interpreter of LiteRT files.

    It warns that it will move to the package ai-edge-litert, and is the same until then.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*Interpreter is deprecated", UserWarning)
        return tf.lite.Interpreter(model_content=content)
