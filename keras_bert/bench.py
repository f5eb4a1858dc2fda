"""`python -m keras_bert bench`: how fast a checkpoint trains on this machine."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal

from keras_bert import doctor, machine
from keras_bert.busy import busy
from keras_bert.errors import InputError

# How an allocator that has nothing left words it: TensorFlow's, XLA's, torch's, C++'s, Python's.
OUT_OF_MEMORY = (
    *("ResourceExhausted", "RESOURCE_EXHAUSTED", "OutOfMemory", "out of memory", "bad_alloc"),
    *("MemoryError", "can't allocate memory", "Cannot allocate memory"),
)
KILLED = -9  # what Linux does to a process when memory runs out
SHARE_OF_MEMORY = 0.8
PATIENCE = 30  # seconds of an update past which nobody would want a larger batch


@dataclasses.dataclass(frozen=True)
class Args:
    """How fast a checkpoint trains here: tokens a second, and the share of what's possible.

    Sequences are made up and full, so that no token is padding. What's trained is the task of
    the checkpoint's heads, or a classifier of two classes where there are none.
    """

    checkpoint: str
    """A preset, or a Hugging Face, Google or KerasHub folder."""
    batch_size: int = 32
    """Examples an update, over all devices."""
    max_sequence_length: int = 128
    """Tokens of a sequence."""
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    """Keras's dtype policy."""
    strategy: Literal["one", "mirrored", "multiworker", "tpu"] = "one"
    """One device; all GPUs of this host; the hosts of TF_CONFIG; a TPU."""
    tpu: str = ""
    """The TPU's name; empty: the one of this machine."""
    seconds: float = 10.0
    """How long to measure, once the step is compiled."""
    find_batch: bool = False
    """Look for the largest batch that fits, too: doubled sizes, each in a process of its own."""


def main(args: Args) -> dict[str, Any]:
    """Measures, prints a few lines, and returns the same as numbers.

    `data_wait` is the share of the time for which the step waited for a pipeline like that of
    the fine-tuning recipes. It's known on TensorFlow with one device; elsewhere batches are
    arrays in memory, and it's None. `flops_utilisation` is the share of the rate of matrix
    products that was measured before, in the same precision.

    Raises:
        InputError: a flag's value can't be, the checkpoint can't be read, or the batch that's
            asked for is too large.
    """
    for name, least in (("batch_size", 1), ("max_sequence_length", 3), ("seconds", 0)):
        if not least <= getattr(args, name) < math.inf:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} must be at least {least}. Received: {getattr(args, name)}.")
    versions = {name: doctor.version_of(name) for name in doctor.PACKAGES}
    problems = doctor.package_problems(versions, os.environ)
    for problem in problems + doctor.backend_problems(*doctor.chosen_backend(os.environ)):
        raise InputError(problem)
    # First: what this process takes of an accelerator's memory would be missing.
    largest = largest_batch(args) if args.find_batch else {}
    metrics = measure(args) | largest
    print(
        f"{metrics['task']}, batch {args.batch_size} x {args.max_sequence_length}, "
        f"{args.precision}, {metrics['replicas']} x {metrics['device'] or machine.cpu_name()}; "
        "full sequences, no padding"
    )
    print(
        f"{metrics['tokens_per_second']:,} tokens/s  {metrics['examples_per_second']:,} examples/s"
    )
    print(
        f"{metrics['gflops_per_second']:,} GFLOP/s, {metrics['flops_utilisation']:.0%} of the "
        f"{metrics['matrix_gflops_per_second']:,} of matrix products"
    )
    if metrics["data_wait"] is not None:
        print(f"waited for input {metrics['data_wait']:.1%} of the time")
    if args.find_batch:
        print(f"largest batch that fits: {largest['largest_batch']} ({largest['stopped_by']})")
    return metrics


def measure(args: Args) -> dict[str, Any]:
    """Loads the checkpoint, trains it for `args.seconds`, and says how that went."""
    with busy("Starting the backend"):
        import keras

        from keras_bert import speed, tasks, training
        from keras_bert.checkpoints import load
        from keras_bert.training.throughput import device_name

    strategy = training.strategy(args.strategy, args.tpu or None)
    training.describe_batch(strategy, args.batch_size)  # refuses what can't be shared out
    keras.config.set_dtype_policy(args.precision)
    dtype = keras.config.dtype_policy().compute_dtype
    with busy("Reading the checkpoint"), strategy.scope():
        preset = load(args.checkpoint)
        longest = preset.config.max_sequence_length
        if args.max_sequence_length > longest:
            raise InputError(
                f"--max-sequence-length is {args.max_sequence_length}, and the position table of "
                f"{args.checkpoint} ends at {longest}: give less."
            )
        model = preset.model
        if model is preset.encoder:
            model = tasks.text_classifier(preset.encoder, 2)
        model.compile(training.AdamW(1e-5), speed.losses(model))
    with busy(f"Multiplying matrices in {dtype}"):
        rate = speed.matrix_product_rate(dtype, min(1.0, args.seconds / 10))
    replicas = strategy.num_replicas_in_sync
    rows, length = args.batch_size, args.max_sequence_length
    batch = speed.made_up_batch(model, preset.config.vocabulary_size, rows, length)
    throughput = speed.throughput(model, preset.config, rows, length, rate * replicas)
    batches, waited = pipeline(batch, keras.backend.backend(), args.strategy)
    with busy(f"Training for {args.seconds:g} seconds"):
        pace = speed.training_pace(model, batches, args.seconds, waited or (lambda: 0.0))
    return {
        **dataclasses.asdict(args),
        "backend": keras.backend.backend(),
        "task": model.name,
        "device": device_name(),
        "replicas": replicas,
        "compiled_by_xla": speed.compiled_by_xla(model),
        "updates": pace.updates,
        "seconds_per_update": round(1 / pace.per_second, 4),
        "examples_per_second": round(rows * pace.per_second, 1),
        **throughput.columns(pace.per_second),
        "matrix_gflops_per_second": round(rate * replicas / 1e9, 2),
        "data_wait": round(pace.waited / pace.seconds, 4) if waited else None,
        "peak_memory_bytes": machine.peak_memory(),
    }


def pipeline(
    batch: Any, backend: str, strategy: str
) -> tuple[Callable[[int], Iterable[Any]], Callable[[], float] | None]:
    """How the same batch comes again and again, and how long it has been waited for.

    On TensorFlow it comes through `data.task_batches`, like a fine-tuning recipe's.
    """
    if backend != "tensorflow":
        return (lambda updates: (batch for _ in range(updates))), None
    from keras_bert.data.task_batches import task_batches
    from keras_bert.data.waiting import Waiting

    rows, length = batch[0]["token_ids"].shape[0], batch[0]["token_ids"].shape[-1]

    def batches(updates: int) -> Any:
        lengths = [length] * (rows * updates)
        return task_batches(lambda *_: batch, lengths, rows, length, layout="fixed")

    if strategy != "one":
        return batches, None
    waiting = Waiting()
    return (lambda updates: waiting.watch(batches(updates))), (lambda: waiting.seconds)


def largest_batch(args: Args) -> dict[str, Any]:
    """Tries `args.batch_size` and doubled sizes, each in a process of its own.

    On an accelerator it goes on until a process runs out of memory. On a CPU that could take
    other processes with it, so nothing is tried that would be expected to take more than 80 % of
    the memory available at the start: what processes have held at their fullest is extended in
    a straight line. It also ends where an update takes more than 30 seconds.

    Returns:
        `largest_batch`, of those that were tried, and `stopped_by`, a sentence.

    Raises:
        InputError: the first one doesn't fit, or it's not known how much memory there is.
    """
    available = machine.available_memory()
    if available is None:
        raise InputError("--find-batch can't tell how much memory this system has: leave it out.")
    room = SHARE_OF_MEMORY * available
    batch, peaks = args.batch_size, [0]
    while True:
        with busy(f"Trying a batch of {batch}"):
            found = trial(args, batch)
        if found is None:
            stopped_by = f"a batch of {batch} runs out of memory"
            break
        peaks.append(found["peak_memory_bytes"] or 0)
        following = peaks[-1] + 2 * (peaks[-1] - peaks[-2])
        if len(peaks) == 2:
            following = 2 * peaks[-1]  # at most
        batch *= 2
        if not found["device"] and following > room:
            stopped_by = (
                f"a batch of {batch} is expected to take {following / 2**30:.1f} GiB, and "
                f"{SHARE_OF_MEMORY:.0%} of what's available are {room / 2**30:.1f}"
            )
            break
        if found["seconds_per_update"] > PATIENCE:
            stopped_by = f"an update takes {found['seconds_per_update']:.0f} seconds"
            break
    if batch == args.batch_size:
        raise InputError(f"a batch of {batch} doesn't fit into memory: lower --batch-size.")
    return {"largest_batch": batch // 2, "stopped_by": stopped_by}


def trial(args: Args, batch_size: int) -> dict[str, Any] | None:
    """The metrics of the same command with another batch, or None if memory ran out.

    Raises:
        InputError: as the command has it.
        RuntimeError: it failed for another reason.
    """
    command = [sys.executable, "-m", "keras_bert", "bench", "--seconds=0"]
    command += [f"--batch-size={batch_size}"]
    for name in ("checkpoint", "max_sequence_length", "precision", "strategy", "tpu"):
        if getattr(args, name):
            command.append(f"--{name.replace('_', '-')}={getattr(args, name)}")
    process = subprocess.run(  # noqa: S603
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    told = process.stderr.decode(errors="replace").strip()
    if process.returncode == 0:
        return json.loads(process.stdout.decode().strip().split("\n")[-1])
    if process.returncode == KILLED or any(words in told for words in OUT_OF_MEMORY):
        return None
    last = told.split("\n")[-1]
    if process.returncode == 2:
        raise InputError(last.removeprefix("error: "))
    raise RuntimeError(f"a process that tried a batch of {batch_size} failed: {last}")
