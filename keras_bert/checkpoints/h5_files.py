"""Keras's weights files, read as nothing but numbers.

A file isn't followed elsewhere, and no more memory is taken than its bytes fill.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from keras_bert.errors import InputError


def read_h5(
    path: pathlib.Path, dropped: Mapping[str, str]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors by their paths, and why those below the paths of `dropped` aren't read.

    Raises:
        InputError: the file is damaged or holds links; a tensor isn't of floats, or isn't stored
            in this file as long as it says to be.
    """
    tensors: dict[str, np.ndarray] = {}
    reasons: dict[str, str] = {}

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Group):
            _check_links(path, item)
        elif above := [group for group in dropped if name.startswith(f"{group}/")]:
            reasons[name] = dropped[above[0]]
        elif isinstance(item, h5py.Dataset):
            tensors[name] = _read_dataset(path, name, item)

    try:
        with h5py.File(path, "r") as file:
            _check_links(path, file)
            file.visititems(take)
    except InputError:
        raise
    except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged: {error}.") from None
    return tensors, reasons


def _check_links(path: pathlib.Path, group: h5py.Group) -> None:
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            place = f"{group.name}/{name}".strip("/")
            raise InputError(f"{path}: {place} is a link to another place, which isn't followed.")


def _read_dataset(path: pathlib.Path, name: str, item: h5py.Dataset) -> np.ndarray:
    # A shape alone costs nothing to claim; the bytes have to be there.
    if item.external or item.is_virtual or item.id.get_storage_size() != item.nbytes:
        raise InputError(f"{path}: tensor {name} isn't stored whole in this file.")
    if item.dtype == "V2" and item.attrs.get("dtype") == "bfloat16":
        # Numpy has no bfloat16: it's the upper half of a float32.
        return (item[()].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if item.dtype.kind != "f":
        raise InputError(f"{path}: tensor {name} must hold floats. Received: {item.dtype}.")
    return np.asarray(item[()]).astype(item.dtype.newbyteorder("="), copy=False)
