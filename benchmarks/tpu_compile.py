r"""What pretraining takes on TPUs, from programs compiled ahead of time: no TPU is needed.

    nox -s tpu
    nox -s tpu -- --cases base-512 large-512-v5e-jax

For BERT-Base and -Large, lengths 128 and 512, several generations of TPU, and the steps of both
backends (`tpu_step.py` says what is compiled), the table gives the memory a step takes, its
operations, the all-reduces in it, and the largest batch that fits.

A case is compiled at two batches: a first one, and the one that fills the device if the
temporaries grow in proportion to the batch, to see that it fits. Only where that misses by more
than a tenth is it compiled again. Each compilation is a process of its own and leaves one JSON
file in `--output-dir`; what is there isn't compiled again, so a stopped run goes on where it
was. All cases take about three hours on two cores and up to 12 GB of memory. The tables in
`docs/tpu_memory*.md` are rewritten after every compilation.

A step that the compiler refuses for another reason than its size, such as an operation that a
TPU doesn't have, is reported with the compiler's words; the rest goes on, and the exit code is 1.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from keras_bert import recipe
from keras_bert.errors import InputError
from keras_bert.files import write_text

HERE = pathlib.Path(__file__).resolve().parent
TABLES = [HERE.parent / "docs" / name for name in ("tpu_memory.md", "tpu_memory.zh.md")]
GIB = 2**30
# GiB that the compiler lets a program have on a device: what it says when one wants more.
AVAILABLE = {"v3": 15.48, "v4": 30.75, "v5e": 15.75, "v6e": 31.24}
# How full the largest batch may be: near the limit the compiler begins to compute things twice.
FILL = 0.97
# A batch within a tenth of the estimate is near enough.
NEAR = 1.1
FIRST_BATCH = {"base": {128: 32, 512: 16}, "large": {128: 32, 512: 8}}
BATCH_MULTIPLE = 8


@dataclasses.dataclass(frozen=True)
class Args:
    """Compile pretraining steps for TPUs and write what they take into the docs."""

    cases: tuple[str, ...] = ()
    """Only cases whose names contain one of these; a name is size-length-tpu-backend."""
    output_dir: str = "runs/tpu_compile"
    """Folder of the results, one JSON file a compilation."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A row of the table."""

    size: str
    length: int
    tpu: str
    backend: str

    def __str__(self) -> str:
        return f"{self.size}-{self.length}-{self.tpu}-{self.backend}"


def all_cases() -> list[Case]:
    """The rows, those that tell most first."""
    return [
        Case(size, length, tpu, backend)
        for size, tpu, lengths in (
            *(("base", "v5e", (128, 512)), ("base", "v3", (128, 512))),
            *(("large", "v5e", (128, 512)), ("large", "v3", (128, 512))),
            *(("base", "v4", (512,)), ("base", "v6e", (512,))),
        )
        for length, backend in itertools.product(lengths, ("jax", "tensorflow"))
    ]


def main(args: Args) -> dict[str, Any]:
    folder = pathlib.Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}
    wanted = args.cases or ("",)
    cases = [case for case in all_cases() if any(part in str(case) for part in wanted)]
    if not cases:
        raise InputError(f"--cases must be parts of names like {all_cases()[0]}: none has these.")
    while True:
        due = {
            case: batch
            for case in cases
            if str(case) not in failed
            and (batch := next_batch(case, results(folder, case))) is not None
        }
        if not due:
            break
        # First batches first: a run that's stopped early has something to say of every case.
        ordered = sorted(due.items(), key=lambda item: bool(results(folder, item[0])))
        for number, (case, batch) in enumerate(ordered, start=1):
            print(f"[{number}/{len(due)}] {case}, batch {batch}", flush=True)
            message = compile_step(folder, case, batch)
            if message:
                failed[str(case)] = message
                print(f"    FAILED: {message}", flush=True)
            write_tables(folder)
    write_tables(folder)
    for name, message in failed.items():
        print(f"{name} can't be compiled: {message}", file=sys.stderr)
    if failed:
        sys.exit(1)
    return {str(case): largest_batch(case, results(folder, case)) for case in cases}


def compile_step(folder: pathlib.Path, case: Case, batch_size: int) -> str:
    """Compiles in a process of its own; returns what went wrong, or nothing."""
    path = folder / f"{case}-{batch_size}.json"
    log = folder / f"{case}-{batch_size}.log"
    command = [sys.executable, str(HERE / "tpu_step.py"), "--output", str(path)]
    for name, value in dataclasses.asdict(case).items():
        command += [] if name == "backend" else [f"--{name}", str(value)]
    environment = os.environ | {"KERAS_BACKEND": case.backend}
    start = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(  # noqa: S603 - our own script
            [*command, "--batch-size", str(batch_size)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
        ).returncode
    if code or not path.exists():
        return complaint(log.read_text(encoding="utf-8"), code)
    result = json.loads(path.read_text(encoding="utf-8"))
    told = f"{result['hbm_bytes'] / GIB:.2f} GiB" if result["fits"] else "too large"
    print(f"    {told}, {time.monotonic() - start:.0f} s", flush=True)
    return ""


def complaint(log: str, code: int) -> str:
    """The exception's message at the end of a log, which names the operation."""
    lines = log.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback")]
    raised = lines[starts[-1] + 1 :] if starts else lines[-5:]
    message = [line for line in raised if line.strip() and not line.startswith(" ")]
    return f"{' '.join(message)[:2000]} (exit code {code})"


def results(folder: pathlib.Path, case: Case) -> dict[int, dict[str, Any]]:
    """What was found of a case so far: batch -> result."""
    found = (json.loads(path.read_text(encoding="utf-8")) for path in folder.glob(f"{case}-*.json"))
    return {result["batch_size"]: result for result in found}


def next_batch(case: Case, found: dict[int, dict[str, Any]]) -> int | None:
    """The batch to compile next; None: the case is finished."""
    fitting = [batch for batch, result in found.items() if result["fits"]]
    if not found:
        return FIRST_BATCH[case.size][case.length]
    if not fitting:
        return min(found) // 2 or None
    target = largest_estimate(case, found)
    return target if target > NEAR * max(fitting) else None


def largest_estimate(case: Case, found: dict[int, dict[str, Any]]) -> int:
    """The batch that takes all that it may, by the line through the two smallest that fit.

    Through one alone, temporaries are in proportion to the batch and arguments don't depend on it.
    It stays a tenth below any batch that was found too large.
    """
    low, *more = sorted(batch for batch, result in found.items() if result["fits"])
    taken = found[low]["hbm_bytes"]
    if more:
        slope = (found[more[0]]["hbm_bytes"] - taken) / (more[0] - low)
    else:
        slope = found[low]["temporary_bytes"] / low
    target = low + (FILL * AVAILABLE[case.tpu] * GIB - taken) / slope
    too_large = [0.9 * batch for batch, result in found.items() if not result["fits"]]
    return round_down(min([target, *too_large]))


def round_down(batch: float) -> int:
    """To a multiple of `BATCH_MULTIPLE`."""
    return int(batch) // BATCH_MULTIPLE * BATCH_MULTIPLE


def largest_batch(case: Case, found: dict[int, dict[str, Any]]) -> str:
    """The largest batch compiled, or `≈` the one that's still to be compiled."""
    fitting = [batch for batch, result in found.items() if result["fits"]]
    if not fitting:
        return "–"
    batch = next_batch(case, found)
    return str(max(fitting)) if batch is None else f"≈ {batch}"


def write_tables(folder: pathlib.Path) -> None:
    """Puts rows below the head of the first table of either page.

    The row of a case that hasn't been compiled here stays as it is.
    """
    for path in TABLES:
        lines = path.read_text(encoding="utf-8").split("\n")
        head = next(i for i, line in enumerate(lines) if line.startswith("|---")) + 1
        end = next(i for i in range(head, len(lines)) if not lines[i].startswith("|"))
        rows = []
        for case in all_cases():
            start = f"| {' | '.join(map(str, dataclasses.astuple(case)))} |"
            old = [line for line in lines[head:end] if line.startswith(start)]
            rows += row_of(case, results(folder, case)) or old
        write_text(path, "\n".join(lines[:head] + rows + lines[end:]))


def row_of(case: Case, found: dict[int, dict[str, Any]]) -> list[str]:
    """The case's row, what the first batch takes and the largest batch; none without a result."""
    fitting = sorted(batch for batch, result in found.items() if result["fits"])
    if not fitting:
        return []
    batch = FIRST_BATCH[case.size][case.length]
    batch = batch if batch in fitting else fitting[0]
    result = found[batch]
    cells = (
        *(case.size, str(case.length), case.tpu, case.backend, str(batch)),
        f"{result['hbm_bytes'] / GIB:.2f}",
        f"{result['flops'] / 1e12:.2f}",
        largest_batch(case, found),
        str(result.get("all_reduces", "–")),
        f"{result['compile_seconds']:.0f}",
    )
    return [f"| {' | '.join(cells)} |"]


if __name__ == "__main__":
    recipe.run(main, Args)
