"""TensorFlow Serving's REST JSON of `:predict`: requests to arrays, arrays to answers.

A string that is no UTF-8 stays as it is, both ways, as in TensorFlow Serving.
"""

from __future__ import annotations

import base64
import functools
import json
import math

import numpy as np
import tensorflow as tf

from .runner import Code, RunnerError


def read_request(body: bytes, signatures: dict) -> tuple[str, dict[str, np.ndarray], bool]:
    """Reads a request by its signature's input types.

    Returns:
        The signature's name, its inputs, and whether they came in rows (`instances`).
    """
    try:
        request = json.loads(body.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise bad(f"JSON Parse error: {error}") from error
    if not isinstance(request, dict):
        raise bad(f"JSON Value: {shown(request)} Is not object")
    name = request.get("signature_name", "serving_default")
    if not isinstance(name, str):
        raise bad("'signature_name' key must be a string value.")
    if name not in signatures:
        raise bad(f'Serving signature name: "{name}" not found in signature def')
    infos = signatures[name].inputs
    if len(request.keys() & {"instances", "inputs"}) != 1:
        both = "instances" in request
        raise bad("Not formatted correctly expecting only one of 'inputs' or 'instances' keys"
                  if both else "Missing 'inputs' or 'instances' key")  # fmt: skip
    if "instances" in request:
        columns = columns_of(request["instances"], infos)
    else:
        columns = request["inputs"]
        if not is_named(columns):
            columns = {only(infos, "inputs is a plain value/list"): columns}
    inputs = {}
    for key, info in sorted(infos.items()):
        if key not in columns:
            raise bad(f"Missing named input: {key} in 'inputs' object.")
        try:
            inputs[key] = tensor(columns[key], tf.as_dtype(info.dtype))
        except RunnerError as error:
            raise bad(f"Failed to process key: {key}. Error: {error.message}") from error
    return name, inputs, "instances" in request


def columns_of(instances: object, infos: dict) -> dict[str, list]:
    """The columns of a list of rows: objects with all inputs' names, or plain values."""
    if not isinstance(instances, list) or not instances:
        raise bad(f"JSON Value: {shown(instances)} Excepting 'instances' to be a list of values")
    if not is_named(instances[0]):
        name = only(infos, "instances is a plain list")
        instances = [row if is_named(row) else {name: row} for row in instances]
    for i, row in enumerate(instances):
        if not is_named(row) or row.keys() != infos.keys():
            raise bad(f"Failed to process element: {i} of 'instances' list. JSON object: "
                      f"{shown(row)} keys must be equal to: {','.join(sorted(infos))}")  # fmt: skip
    return {name: [row[name] for row in instances] for name in infos}


def is_named(value: object) -> bool:
    """Whether the value has inputs by name; {"b64": ...} is a string."""
    return isinstance(value, dict) and value.keys() != {"b64"}


def only(infos: dict, what: str) -> str:
    """The name of the signature's one input."""
    if len(infos) > 1:
        raise bad(f"{what}, but expecting names, as there are multiple inputs: {sorted(infos)}")
    return next(iter(infos))


def tensor(value: object, dtype: tf.DType) -> np.ndarray:
    """A rectangular nested list as an array."""
    shape, inner = [], value
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    leaves: list = []
    collect(value, shape, dtype, leaves)
    array = np.empty(len(leaves), dtype.as_numpy_dtype)
    array[:] = leaves
    return array.reshape(shape)


def collect(value: object, shape: list[int], dtype: tf.DType, leaves: list) -> None:
    """Appends the values of a nested list, which must be of that shape."""
    if isinstance(value, list) != bool(shape):
        raise bad(f"JSON Value: {shown(value)} found at incorrect level")
    if not shape:
        leaves.append(leaf(value, dtype))
        return
    if len(value) != shape[0]:
        raise bad(f"Encountered list at unexpected size: {len(value)} expected size: {shape[0]}")
    for item in value:
        collect(item, shape[1:], dtype, leaves)


def leaf(value: object, dtype: tf.DType) -> object:
    """One value, where it's one of the type."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    try:
        if dtype == tf.string and isinstance(value, str):
            return value.encode("utf-8", "surrogateescape")
        if dtype == tf.string and isinstance(value, dict):
            return base64.b64decode(value["b64"], validate=True)
        if dtype == tf.bool and isinstance(value, bool):
            return value
        if dtype.is_integer and number and isinstance(value, int) and in_range(value, dtype):
            return value
        if dtype.is_floating and number and (in_range(value, dtype) or not math.isfinite(value)):
            return value
    except (KeyError, TypeError, ValueError) as error:
        raise bad(f"JSON Value: {shown(value)} not formatted correctly: {error}") from error
    raise bad(f"JSON Value: {shown(value)} is not of expected type: {dtype.name}")


def in_range(value: float, dtype: tf.DType) -> bool:
    least, most = limits(dtype)
    return least <= value <= most


@functools.cache
def limits(dtype: tf.DType) -> tuple[float, float]:
    return dtype.min, dtype.max


def write_reply(outputs: dict[str, np.ndarray], by_rows: bool) -> bytes:
    """The answer in the request's format; an output alone goes without its name."""
    values = {name: plain(name, array) for name, array in outputs.items()}
    [first, *others] = sorted(outputs)
    if not by_rows:
        return dump({"outputs": values if others else values[first]})
    for name in others:
        if len(outputs[name]) != len(outputs[first]):
            raise bad(f"Tensor name: {name} has inconsistent batch size: {len(outputs[name])} "
                      f"expecting: {len(outputs[first])}")  # fmt: skip
    rows = [dict(zip(values, row)) for row in zip(*values.values())] if others else values[first]
    return dump({"predictions": rows})


def plain(name: str, array: np.ndarray) -> list:
    """Nested lists of what JSON has; strings of outputs named ..._bytes go as base64."""
    if array.dtype != object:
        return array.tolist()
    values = np.empty(array.shape, object)
    for i, string in enumerate(array.flat):
        values.flat[i] = (
            {"b64": base64.b64encode(string).decode()}
            if name.endswith("_bytes")
            else string.decode("utf-8", "surrogateescape")
        )
    return values.tolist()


def dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")


def shown(value: object) -> str:
    return json.dumps(value)[:200]


def bad(message: str) -> RunnerError:
    return RunnerError(Code.INVALID_ARGUMENT, message)
