"""How fast this machine multiplies matrices and trains a model, measured through the backend."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert.layers.crf import CrfLoss
from keras_bert.training.throughput import Throughput, pretraining_flops

LARGEST_MATRIX = 8192
LONG_ENOUGH = 0.02  # seconds of a product beside which the call itself doesn't count
GOES = 5
CHOICES = 2  # texts of an example of `tasks.multiple_choice`

Batch = tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]


def matrix_product_rate(dtype: str, seconds: float) -> float:
    """FLOP/s of one device on products of square matrices, one after another.

    They're as large as it takes for a product to last 20 ms, up to 8,192 x 8,192; in float32 a
    backend may compute with fewer bits, as it does for a model. Of five goes the fastest counts:
    the others shared the machine with something.

    Args:
        dtype: "float32", "bfloat16" or "float16".
        seconds: For all goes.
    """
    rng = np.random.default_rng(0)
    size, each = 128, 0.0
    while each < LONG_ENOUGH and size < LARGEST_MATRIX:
        size *= 2
        # So small that a long chain of products stays near 1.
        numbers = rng.standard_normal((size, size), np.float32) / math.sqrt(size)
        matrix = ops.cast(ops.convert_to_tensor(numbers), dtype)
        seconds_of_products(matrix, 1)  # compiles
        each = min(seconds_of_products(matrix, 1) for _ in range(GOES))
    count = max(1, round(seconds / GOES / each))
    return 2 * size**3 * count / min(seconds_of_products(matrix, count) for _ in range(GOES))


def seconds_of_products(matrix: Any, count: int) -> float:
    """Multiplies the matrix with itself, and the product with it again."""
    started = time.perf_counter()
    product = matrix
    for _ in range(count):
        product = ops.matmul(product, matrix)
    float(ops.cast(product[0, 0], "float32"))  # a number comes back once all is done
    return time.perf_counter() - started


@dataclasses.dataclass(frozen=True)
class Pace:
    """What was seen of a training run.

    Attributes:
        updates: Made while the clock ran.
        seconds: They took, in `fit`.
        waited: Seconds of these for which the step waited for its batches.
    """

    updates: int
    seconds: float
    waited: float

    @property
    def per_second(self) -> float:
        """Updates a second."""
        return self.updates / self.seconds


def training_pace(
    model: keras.Model,
    batches: Callable[[int], Iterable[Any]],
    seconds: float,
    waited: Callable[[], float] = lambda: 0.0,
) -> Pace:
    """Trains a compiled model by plain `fit`, as a recipe does, and times it.

    The first update compiles the step and the second may still: neither is counted, unless no
    time is given for more.

    Args:
        model: Its weights change.
        batches: The number of updates -> their batches, as `fit` takes them.
        seconds: To measure for; 0: the second update.
        waited: Returns the seconds waited for batches so far.
    """
    # Without its variables TensorFlow would trace the step twice.
    model.optimizer.build(model.trainable_variables)
    clock = Clock()

    def fit(updates: int) -> float:
        model.fit(
            batches(updates),
            steps_per_epoch=updates,
            epochs=1,
            shuffle=False,
            verbose=0,
            callbacks=[clock],
        )
        return clock.seconds

    fit(1)
    if seconds == 0:
        before = waited()
        return Pace(1, fit(1), waited() - before)
    each = fit(1)
    before = waited()
    done, spent = 0, 0.0
    while not done or spent < 0.9 * seconds:
        updates = max(1, round((seconds - spent) / each))
        each = fit(updates) / updates
        done, spent = done + updates, spent + updates * each
    return Pace(done, spent, waited() - before)


class Clock(keras.callbacks.Callback):
    """Seconds of an epoch, its results included."""

    async_safe = True  # the next update begins before this one's results are there

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._started = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stops it once the device is done."""
        float(logs["loss"])
        self.seconds = time.perf_counter() - self._started


def made_up_batch(model: keras.Model, vocabulary_size: int, batch_size: int, length: int) -> Batch:
    """(inputs, labels, weights) for a task: random tokens without padding, the same each time.

    Args:
        model: One of `keras_bert.tasks`.
        vocabulary_size: V.
        batch_size: Examples, each of one sequence, or of two for `tasks.multiple_choice`.
        length: T.
    """
    rng = np.random.default_rng(0)
    masked = masked_positions(model, length)
    inputs = {}
    for name, x in model.input.items():
        choices = [CHOICES] * (len(x.shape) - 2)
        ids = np.zeros((batch_size, *choices, length), np.int32)
        if name == "token_ids":
            ids = rng.integers(0, vocabulary_size, ids.shape, np.int32)
        elif name == "padding_mask":
            ids += 1
        elif name == "mask_positions":
            ids = np.tile(np.arange(masked, dtype=np.int32), (batch_size, 1))
        inputs[name] = ids
    labels = {}
    for name, x in model.output.items():
        axes = x.shape[1:] if is_number(x) else x.shape[1 : min(len(x.shape) - 1, 2)]
        free = masked if name == "masked_lm" else length
        shape = (batch_size, *(size or free for size in axes))
        labels[name] = np.zeros(shape, np.float32 if is_number(x) else np.int32)
    weights = {
        name: np.ones(label.shape[:-1] if is_number(model.output[name]) else label.shape, "float32")
        for name, label in labels.items()
    }
    return inputs, labels, weights


def losses(model: keras.Model) -> dict[str, Any]:
    """A loss for each output of a task, by the output's shape."""

    def loss(x: Any) -> Any:
        if len(x.shape) == 4:
            return CrfLoss()
        if is_number(x):
            return "mse"
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    return {name: loss(x) for name, x in model.output.items()}


def is_number(output: Any) -> bool:
    """Whether a task's output is no logits of classes but the value itself."""
    return output.shape[-1] == 1


def masked_positions(model: keras.Model, length: int) -> int:
    """M: 15 % of T where the task predicts masked tokens, else 0."""
    return math.ceil(0.15 * length) if "mask_positions" in model.input else 0


def throughput(
    model: keras.Model, config: Any, batch_size: int, length: int, peak: float
) -> Throughput:
    """What an update of a task computes, beside `peak`, the machine's rate in FLOP/s.

    Counted as in `pretraining_flops`, with the head that predicts masked tokens where the task
    has it. Other heads count as that of next sentences, which is below 1 % either way.
    """
    choices = CHOICES if len(model.input["token_ids"].shape) == 3 else 1
    rows = batch_size * choices
    flops = pretraining_flops(config, rows, length, masked_positions(model, length))
    return Throughput(tokens=rows * length, flops=flops, peak=peak)


def accelerators() -> list[str]:
    """GPUs and TPUs that the backend sees, such as "gpu:0 NVIDIA L4"."""
    name = keras.backend.backend()
    backend: Any = sys.modules[name]
    if name == "jax":
        devices = [device for device in backend.devices() if device.platform != "cpu"]
        return [f"{device.platform}:{device.id} {device.device_kind}" for device in devices]
    if name == "torch":
        count = backend.cuda.device_count() if backend.cuda.is_available() else 0
        return [f"gpu:{i} {backend.cuda.get_device_name(i)}" for i in range(count)]
    found = []
    for device in backend.config.list_physical_devices():
        if device.device_type in ("GPU", "TPU"):
            details = backend.config.experimental.get_device_details(device)
            number = device.name.rpartition(":")[2]
            known = details.get("device_name", "")
            found.append(f"{device.device_type.lower()}:{number} {known}".rstrip())
    return found


def compiled_by_xla(model: keras.Model) -> bool:
    """Whether XLA compiles a compiled model's step: always on JAX, never on torch."""
    name = keras.backend.backend()
    return name == "jax" or (name == "tensorflow" and bool(model.jit_compile))
