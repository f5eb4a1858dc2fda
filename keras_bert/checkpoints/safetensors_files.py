"""The safetensors format: 8 bytes of length, a JSON header, and the tensors' bytes.

Reading is our own, since the library's numpy form knows no bfloat16 and doesn't name the
tensor that is at fault.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_bert.errors import InputError

DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|b1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
}  # fmt: skip


def read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Every tensor of a file; bfloat16 comes as float32, which holds the same values.

    Raises:
        InputError: the file is cut off, or a tensor's dtype, shape and place don't fit: tensors
            must fill the file after the header, each byte belonging to one of them.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise InputError(
                f"{path} is cut off or damaged: a header of {length} bytes can't be in a file of "
                f"{size} bytes."
            )
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is damaged: its header isn't JSON ({error}).") from None
        data = np.fromfile(file, np.uint8)
    if not isinstance(header, dict):
        raise InputError(f"{path} is damaged: its header must be an object.")
    header.pop("__metadata__", None)
    places = {name: _place(name, entry, path) for name, entry in header.items()}
    tensors, end = {}, 0
    for name in sorted(places, key=places.__getitem__):
        start, stop = places[name]
        if start != end or stop > len(data):
            raise InputError(
                f"{path}: tensor {name} must start at byte {end} of {len(data)} and end within "
                f"them. Received: data_offsets {[start, stop]}."
            )
        end, entry = stop, header[name]
        tensor = data[start:stop].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":  # the upper half of a float32
            tensor = (tensor.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = tensor
    if end != len(data):
        raise InputError(f"{path} is damaged: {len(data) - end} bytes at its end are no tensor's.")
    return tensors


def read_shards(path: pathlib.Path, places: Any) -> dict[str, np.ndarray]:
    """The tensors of several files beside `path`, the index whose `weight_map` is `places`.

    Raises:
        InputError: `places` isn't exactly what the files hold, or names a file elsewhere.
    """
    if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
        raise InputError(f"{path}: weight_map must map tensors to files. Received: {places!r}.")
    tensors: dict[str, np.ndarray] = {}
    for shard in sorted(set(places.values())):
        if pathlib.PurePath(shard).name != shard or not (path.parent / shard).is_file():
            raise InputError(f"{path} names the file {shard!r}, which isn't in its folder.")
        tensors |= read_safetensors(path.parent / shard)
    for name in sorted(set(places) ^ set(tensors)):
        fault = "isn't in its shards" if name in places else "isn't in weight_map"
        raise InputError(f"{path}: tensor {name} {fault}.")
    return tensors


def write_safetensors(tensors: Mapping[str, np.ndarray], path: pathlib.Path) -> None:
    """Writes a file as Hugging Face's own code does, marked as of torch's layout."""
    try:
        from safetensors.numpy import save_file
    except ImportError:
        raise ImportError(
            "Writing safetensors needs a package: run `pip install 'keras3-bert[huggingface]'`."
        ) from None
    save_file(
        {name: np.ascontiguousarray(x) for name, x in tensors.items()}, path, {"format": "pt"}
    )


def _place(name: str, entry: Any, path: pathlib.Path) -> tuple[int, int]:
    """The bytes from where to where, which a tensor's dtype and shape must fill."""
    try:
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        described = all(type(n) is int and n > 0 for n in (*shape, start + 1, stop))
    except (KeyError, TypeError, ValueError):
        described = False
    if not described:
        raise InputError(f"{path}: tensor {name} lacks its dtype, shape or place in the file.")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InputError(
            f"{path}: tensor {name} must have one of the dtypes {', '.join(DTYPES)}. "
            f"Received: {dtype}."
        )
    needed = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if stop - start != needed:
        raise InputError(
            f"{path}: tensor {name} of shape {shape} in {dtype} must take {needed} bytes. "
            f"Received: data_offsets {[start, stop]}."
        )
    return start, stop
