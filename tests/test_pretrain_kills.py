"""Runs that are killed at any moment and started again by the same command lose nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import numpy as np
import pytest
from pretraining_records import command, make_data, rows, start, weights

from keras_bert.training.callbacks import latest


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def arguments(data, steps, **changes):
    usual = {"size": "tiny", "batch_size": 4, "learning_rate": 1e-3, "warmup_ratio": 0.1}
    return {**data, **usual, "steps": steps, **changes}


def finish(words, **kwargs):
    process = start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return out


def number(run):
    """The update of the newest checkpoint, -1 without one."""
    checkpoint = latest(run / "checkpoints")
    return -1 if checkpoint is None else int(checkpoint.name.removeprefix("update-"))


def writing(run):
    """The update whose checkpoint is being written, -1 if none is."""
    found = (run / "checkpoints").glob("update-*.unfinished")
    return max((int(path.name[7:-11]) for path in found), default=-1)


def kill(words, run, kind, update, delay):
    """Starts the command and kills it `delay` seconds after a moment; says where it fell.

    The moment: training begins ("start"), a checkpoint of `update` or later has been written
    ("written") or is being written ("writing") by this process.
    """
    before, manifest = number(run), run / "manifest.json"
    began = manifest.stat().st_mtime_ns if manifest.exists() else 0

    def reached():
        if not manifest.exists() or manifest.stat().st_mtime_ns == began:
            return False  # the process is still reading its data
        if kind == "start":
            return True
        # An unfinished checkpoint may be left of the kill before, until the next one is saved.
        if kind == "writing" and number(run) == before >= 0:
            return False
        return max(before + 1, update) <= (number(run) if kind == "written" else writing(run))

    process = start(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not reached():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.0005)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    return {"kind": kind, "update": number(run), "writing": writing(run)}


def check_same(run, expected):
    ours, theirs = weights(run), weights(expected)
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        np.testing.assert_array_equal(weight, theirs[name], err_msg=name)
    np.testing.assert_equal(rows(run), rows(expected))
    best = [(folder / "checkpoints" / "best.json").read_text() for folder in (run, expected)]
    assert best[0] == best[1]


@pytest.mark.slow
def test_killed_twice(data, tmp_path):
    """While it writes a checkpoint of the first phase, and amid the second; dropout is on."""
    settings = arguments(data, 20, evaluate_every=6, save_every=5)
    finish(command(tmp_path / "whole", "--resume", **settings))
    run = tmp_path / "killed"
    words = command(run, "--resume", **settings)
    assert kill(words, run, "writing", 5, 0)["writing"] >= 5
    assert 15 <= kill(words, run, "written", 15, 0.02)["update"] < 20
    finish(words)
    check_same(run, tmp_path / "whole")


@pytest.mark.slow
def test_killed_twenty_times(data, tmp_path):
    """Before the first checkpoint, within writes, and between them, in both phases."""
    settings = arguments(data, 150, evaluate_every=20, save_every=3)
    finish(command(tmp_path / "whole", "--resume", **settings))
    rng = np.random.default_rng(7)
    plan = [("start", 0, rng.uniform(0, 1)) for _ in range(4)]
    for i, update in enumerate([*range(3, 70, 8), *range(90, 138, 7)]):
        plan.append(("writing", update, 0) if i % 2 else ("written", update, rng.uniform(0, 0.05)))
    run = tmp_path / "killed"
    words = command(run, "--resume", **settings)
    fell = [kill(words, run, *one) for one in plan]
    print(json.dumps(fell))
    assert len(fell) == 20
    assert sum(one["update"] < 0 for one in fell) >= 3
    assert sum(one["kind"] == "writing" and one["writing"] > one["update"] for one in fell) >= 5
    assert sum(one["update"] >= 90 for one in fell) >= 5
    finish(words)
    check_same(run, tmp_path / "whole")
