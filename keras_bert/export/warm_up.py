"""Warm-up requests: what TensorFlow Serving runs before a model answers its first client."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

MAX_REQUESTS = 1000  # with more records than this, TensorFlow Serving refuses the model
DTYPES = {"i": np.int32, "f": np.float32}  # those of every signature, by NumPy's kind


def write_warm_up(
    folder: str | os.PathLike[str],
    name: str,
    requests: Sequence[tuple[str, Mapping[str, Any]]],
) -> pathlib.Path:
    """Writes the file that TensorFlow Serving looks for in a SavedModel.

    It's written in place: a SavedModel is made under another name and renamed once it's whole.

    Args:
        folder: The SavedModel's.
        name: The name under which the model is served.
        requests: The signature and, by name, the inputs of each: arrays or nested lists.

    Returns:
        `folder/assets.extra/tf_serving_warmup_requests`, TFRecords of PredictionLog.

    Raises:
        ValueError: There are more than 1,000 requests.

    References:
        - [SavedModel warmup](https://www.tensorflow.org/tfx/serving/saved_model_warmup)
    """
    if len(requests) > MAX_REQUESTS:
        raise ValueError(
            f"`requests` must hold at most {MAX_REQUESTS:,} requests, as TensorFlow Serving "
            f"refuses a model with more. Received: {len(requests):,} requests."
        )
    path = pathlib.Path(folder) / "assets.extra" / "tf_serving_warmup_requests"
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests:
            writer.write(prediction_log(name, signature, inputs))
    return path


def prediction_log(name: str, signature: str, inputs: Mapping[str, Any]) -> bytes:
    """One request as a serialized `tensorflow.serving.PredictionLog`.

    The five messages are written by hand: their classes are in tensorflow-serving-api alone.
    """
    model_spec = _field(1, name.encode()) + _field(3, signature.encode())
    request = _field(1, model_spec)
    for key, value in inputs.items():
        tensor = tensor_proto(value).SerializeToString()
        request += _field(2, _field(1, key.encode()) + _field(2, tensor))  # an entry of a map
    predict_log = _field(1, request)
    return _field(6, predict_log)


def tensor_proto(value: Any) -> tensor_pb2.TensorProto:
    """An array or nested list as a TensorProto of int32, float32 or string (UTF-8)."""
    if isinstance(value, np.ndarray) and value.dtype.kind in DTYPES:
        value = value.astype(DTYPES[value.dtype.kind])
    return tf.make_tensor_proto(value)


def _field(number: int, content: bytes) -> bytes:
    """A field of a message: a string or another message, which protobuf writes alike.

    That's a byte of the number and of wire type 2, the length as a varint (seven bits a byte,
    the lowest first, the top bit where more follow), and the content.
    """
    length, size = bytearray(), len(content)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content
