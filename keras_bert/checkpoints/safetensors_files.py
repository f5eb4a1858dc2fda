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
# The library's own limit; BERT's header takes some 30 kB.
MOST_HEADER_BYTES = 100_000_000
MOST_AXES = 32  # what numpy 1 can shape


def read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Every tensor of a file; bfloat16 comes as float32, which holds the same values.

    Raises:
        InputError: the file is cut off, or a tensor's dtype, shape and place don't fit: tensors
            must fill the file after the header, each byte belonging to one of them. It's found
            before the tensors are read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise InputError(
                f"{path} is cut off or damaged: a header of {length} bytes can't be in a file of "
                f"{size} bytes."
            )
        if length > MOST_HEADER_BYTES:
            raise InputError(
                f"{path} is damaged: its header must have at most {MOST_HEADER_BYTES} bytes. "
                f"Received: {length}."
            )
        try:
            header = json.loads(file.read(length), object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is damaged: its header isn't JSON ({error}).") from None
        places = _places(header, size - 8 - length, path)
        data = np.fromfile(file, np.uint8)
    tensors = {}
    for name, (start, stop) in places.items():
        entry = header[name]
        tensor = data[start:stop].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":  # the upper half of a float32
            tensor = (tensor.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = tensor
    return tensors


def read_shards(path: pathlib.Path, places: Any) -> dict[str, np.ndarray]:
    """The tensors of several files beside `path`, the index whose `weight_map` is `places`.

    Raises:
        InputError: `places` isn't exactly what the files hold, or names a file elsewhere.
    """
    if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
        raise InputError(f"{path}: weight_map must map tensors to files. Received: {places!r}.")
    shards = sorted(set(places.values()))
    for shard in shards:
        if pathlib.PurePath(shard).name != shard or not (path.parent / shard).is_file():
            raise InputError(f"{path} names the file {shard!r}, which isn't in its folder.")
    tensors: dict[str, np.ndarray] = {}
    for shard in shards:
        found = read_safetensors(path.parent / shard)
        expected = {name for name, place in places.items() if place == shard}
        for name in sorted(expected ^ set(found)):
            fault = "isn't in its shards" if name in expected else "isn't in weight_map"
            raise InputError(f"{path}: tensor {name} {fault}: {shard}.")
        tensors |= found
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


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a key that's there twice, Python alone would keep the last."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r} is there twice")
        found[name] = value
    return found


def _places(header: Any, size: int, path: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Where each tensor is in the `size` bytes after the header, which they must fill."""
    if not isinstance(header, dict):
        raise InputError(f"{path} is damaged: its header must be an object.")
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    places = {name: _place(name, entry, path) for name, entry in entries.items()}
    end = 0
    for name in sorted(places, key=places.__getitem__):
        start, stop = places[name]
        if start != end or stop > size:
            raise InputError(
                f"{path}: tensor {name} must start at byte {end} of {size} and end within "
                f"them. Received: data_offsets {[start, stop]}."
            )
        end = stop
    if end != size:
        raise InputError(f"{path} is damaged: {size - end} bytes at its end are no tensor's.")
    return places


def _place(name: str, entry: Any, path: pathlib.Path) -> tuple[int, int]:
    """The bytes from where to where, which a tensor's dtype and shape must fill."""
    try:
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        described = isinstance(shape, list) and len(shape) <= MOST_AXES
        described &= all(type(n) is int and n > 0 for n in (*shape, start + 1, stop))
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
