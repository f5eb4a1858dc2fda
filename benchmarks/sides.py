"""The sides of a comparison: processes of their own, in turn, and the table of what they print."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

SQUARE = 2048  # rows of the matrices


def in_turn(
    script: str, sides: Sequence[str], rounds: int, peers_python: str, settings: dict[str, Any]
) -> dict[str, list[dict[str, float]]]:
    """What the sides' processes print as their last line: each round starts with another side.

    A process is called with the side, the time at which it's started, and the settings.
    """
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    # On the CPU alone: the peers' scripts use no other device.
    environment = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment |= {"CUDA_VISIBLE_DEVICES": "-1"}
    for number in range(rounds):
        first = number % len(sides)
        for side in (*sides[first:], *sides[:first]):
            ours = side.startswith(("ours", "keras_hub"))
            command = [sys.executable if ours else peers_python, script, side]
            command += [str(time.monotonic()), json.dumps(settings)]
            output = subprocess.run(  # noqa: S603 - the caller itself
                command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True
            ).stdout
            found[side].append(json.loads(output.strip().split("\n")[-1]))
            print(json.dumps(settings | {"side": side} | found[side][-1]), flush=True)
    return found


def compared(runs: dict[str, list[dict[str, float]]], rate: str) -> dict[str, Any]:
    """Each side's median, least and greatest numbers, and ours against the fastest peer's rate."""
    sides = {
        side: {
            name: [f(each[name] for each in several) for f in (statistics.median, min, max)]
            for name in several[0]
        }
        for side, several in runs.items()
    }
    medians = {side: numbers[rate][0] for side, numbers in sides.items()}
    peers = [side for side in sides if not side.startswith("ours")]
    fastest = max(peers, key=lambda side: medians[side], default=None)
    ratios = {
        side: round(medians[side] / medians[fastest], 3)
        for side in sides
        if fastest is not None and side not in peers
    }
    return {"sides": sides, "fastest_peer": fastest, "ratio": ratios}


def show(table: dict[str, Any]) -> None:
    """Prints what `compared` gives: a line for each number, a column for each side."""
    sides = table["sides"]
    print(" " * 24, *(f"{side:>26}" for side in sides))
    for name in next(iter(sides.values())):
        cells = ("{:g} ({:g} to {:g})".format(*sides[side][name]) for side in sides)
        print(f"{name:24}", *(f"{cell:>26}" for cell in cells))
    print(f"against {table['fastest_peer']}: {table['ratio']}", flush=True)


def matrix_rate(library: str, dtype: str) -> float:
    """Billions of operations a second on large square matrices, the best of ten products."""
    if library == "torch":
        import torch

        x = torch.randn(SQUARE, SQUARE).to(getattr(torch, dtype))
        multiply = torch.matmul
    else:
        import tensorflow as tf

        x = tf.cast(tf.random.normal((SQUARE, SQUARE)), dtype)
        multiply = tf.matmul
    seconds = []
    for _ in range(11):
        began = time.perf_counter()
        multiply(x, x)
        seconds.append(time.perf_counter() - began)
    return 2 * SQUARE**3 / min(seconds[1:]) / 1e9
