"""One update is one update: replicas, processes, micro-batches and steps a call change nothing.

Each arrangement trains the tiny golden model in a process of its own (`one_update_run.py`) and
is compared with one device.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest
from conftest import TESTS

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="tf.distribute is TensorFlow's"
)


def run(arguments, output, **environment):
    """Starts the process; `finish` waits for it."""
    here = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, str(TESTS / "one_update_run.py"), json.dumps(arguments), str(output)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(here)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process, output):
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed[-3000:]
    with np.load(output) as file:
        return dict(file)


def outcome(arguments, output):
    return finish(run(arguments, output), output)


@pytest.fixture(scope="session")
def one(tmp_path_factory):
    """One device's run, made once for all test processes."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    kept = shared / "one_update_reference.npz"
    if not kept.exists():
        output = tmp_path_factory.mktemp("one") / "out.npz"
        outcome({}, output)
        os.replace(output, kept)
    with np.load(kept) as file:
        return dict(file)


def compare(one, other, kinds=("sgd", "adamw")):
    """Raises AssertionError unless the two runs made the same updates."""
    for kind in kinds:
        tolerance = {"sgd": 1e-6, "adamw": 1e-5}[kind]
        gradients = [name for name in one if name.startswith(f"{kind}/gradient")]
        norm = np.sqrt(sum(np.square(one[name]).sum() for name in gradients))
        apart = np.sqrt(sum(np.square(one[name] - other[name]).sum() for name in gradients))
        assert apart <= 1e-6 * norm, f"{kind}: gradients differ by {apart / norm}"
        weights = [name for name in one if name.startswith(f"{kind}/weight")]
        starts = [name.replace("/weight/", "/start/") for name in weights]
        moved = max(np.abs(one[a] - one[b]).max() for a, b in zip(weights, starts, strict=True))
        assert moved >= 1e-4
        apart = max(np.abs(one[name] - other[name]).max() for name in weights)
        assert apart <= tolerance, f"{kind}: weights differ by {apart}"
        assert one[f"{kind}/iterations"] == other[f"{kind}/iterations"] == 8
        for name in one:
            if name.startswith((f"{kind}/fit/", f"{kind}/evaluate/")):
                np.testing.assert_allclose(other[name], one[name], rtol=1e-6, err_msg=name)
            if name.startswith(f"{kind}/predict/"):
                # At equal weights: after eight updates rounding moved a logit by 1.3e-5.
                alone = other[name.replace("/predict/", "/alone/")]
                np.testing.assert_allclose(other[name], alone, rtol=0, atol=5e-6, err_msg=name)


def test_an_arrangement_of_all_makes_the_same_updates(one, tmp_path):
    arguments = {"replicas": 2, "accumulate": 2, "steps_per_execution": 4}
    compare(one, outcome(arguments, tmp_path / "out.npz"))


ARRANGEMENTS = [
    {"accumulate": 2},
    {"accumulate": 4},
    {"steps_per_execution": 4},
    {"jit_compile": True},
    {"replicas": 2},
    {"replicas": 4},
    {"replicas": 2, "accumulate": 4},
]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ARRANGEMENTS, ids=json.dumps)
def test_every_arrangement_makes_the_same_updates(one, arguments, tmp_path):
    compare(one, outcome(arguments, tmp_path / "out.npz"))


def of_two_processes(arguments, folder):
    """The two workers' outcomes, which must be the same bits."""
    addresses = [f"localhost:{free_port()}" for _ in range(2)]
    started = []
    for index in range(2):
        cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        output = folder / f"worker_{index}.npz"
        process = run({"workers": 2} | arguments, output, TF_CONFIG=json.dumps(cluster))
        started.append((process, output))
    first, second = [finish(process, output) for process, output in started]
    equal(first, second)
    return first


def equal(first, second):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.mark.slow
def test_two_processes_make_the_same_updates(one, tmp_path):
    compare(one, of_two_processes({}, tmp_path))


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize(
    "fault",
    ["clip in each replica", "denominator of each replica", "schedule counts micro-steps"],
)
def test_planted_faults_are_noticed(one, fault, tmp_path):
    wrong = outcome({"replicas": 2, "fault": fault, "kinds": ["sgd"]}, tmp_path / "out.npz")
    with pytest.raises(AssertionError):
        compare(one, wrong, ["sgd"])


def test_the_same_seed_gives_the_same_bits(tmp_path):
    """With dropout, on two replicas, twice, under deterministic ops."""
    arguments = {"replicas": 2, "accumulate": 2, "dropout": 0.1, "kinds": ["adamw"]}
    equal(*(outcome(arguments, tmp_path / f"{i}.npz") for i in range(2)))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits_on_one_device_and_in_two_processes(tmp_path):
    arguments = {"dropout": 0.1, "kinds": ["adamw"]}
    equal(*(outcome(arguments, tmp_path / f"{i}.npz") for i in range(2)))
    equal(*(of_two_processes(arguments, tmp_path) for _ in range(2)))
