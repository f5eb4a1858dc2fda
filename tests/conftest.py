"""What all tests share."""

from __future__ import annotations

import pathlib

import keras
import numpy as np
import pytest

TESTS = pathlib.Path(__file__).resolve().parent
SHARED = TESTS.parents[1] / "shared"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test starts from the same random state."""
    keras.utils.set_random_seed(0)


@pytest.fixture
def golden():
    """Reads a stored array file of `tests/golden`."""

    def read(name: str) -> dict[str, np.ndarray]:
        with np.load(TESTS / "golden" / f"{name}.npz") as file:
            return dict(file)

    return read


@pytest.fixture
def shared():
    """A path in the folder of real data that may lie beside the checkout."""

    def find(name: str) -> pathlib.Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"the real data isn't here: needs ../shared/{name}")
        return path

    return find
