"""Batching of concurrent requests as TensorFlow Serving's `--enable_batching` does it."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
import re
import threading

import numpy as np

from .runner import Code, RunnerError


@dataclasses.dataclass(frozen=True)
class Parameters:
    """What is read of a `batching_parameters.txt`; the defaults are TensorFlow Serving's."""

    max_batch_size: int = 1000
    batch_timeout_micros: int = 0
    pad_variable_length_inputs: bool = False

    @classmethod
    def read(cls, path: str) -> Parameters:
        """Reads a text file of BatchingParameters; those of threads and queues don't matter here.

        As in `max_batch_size { value: 32 }` and `pad_variable_length_inputs: true`.
        """
        text = re.sub(r"#.*", "", pathlib.Path(path).read_text(encoding="utf-8"))
        values = dict(re.findall(r"(\w+)\s*(?::|\{\s*value\s*:)\s*(\w+)", text))
        known = {field.name: values[field.name] for field in dataclasses.fields(cls)
                 if field.name in values}  # fmt: skip
        return cls(**{name: value == "true" if name.startswith("pad_") else int(value)
                      for name, value in known.items()})  # fmt: skip


@dataclasses.dataclass
class Task:
    """One request: its arrays, its rows, and where its answer will be."""

    inputs: dict[str, np.ndarray]
    size: int
    answer: concurrent.futures.Future = dataclasses.field(default_factory=concurrent.futures.Future)


@dataclasses.dataclass
class Batch:
    """Requests that are run at once."""

    tasks: list[Task] = dataclasses.field(default_factory=list)
    size: int = 0
    full: threading.Event = dataclasses.field(default_factory=threading.Event)


class Batcher:
    """Joins the requests to one signature that come within the timeout.

    The thread of a batch's first request waits for the others, runs all, and hands out the
    answers. An error is the answer to every request of its batch.

    Args:
        run: takes a signature's name and its inputs, and returns its outputs.
    """

    def __init__(self, run, parameters: Parameters):
        self._run, self._parameters = run, parameters
        self._open: dict[tuple, Batch] = {}
        self._lock = threading.Lock()

    def run(self, signature: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Answers like `run`; whether others ran with it doesn't show, as long as shapes agree."""
        most = self._parameters.max_batch_size
        task = Task(inputs, rows(inputs))
        if task.size > most:
            message = f"Task size {task.size} is larger than maximum input batch size {most}"
            raise RunnerError(Code.INVALID_ARGUMENT, message)
        # A request that lacks an input, or has one of another type, fails by itself.
        kind = (signature, *sorted((name, a.dtype.str, a.ndim) for name, a in inputs.items()))
        with self._lock:
            batch = self._open.get(kind)
            leads = batch is None or batch.size + task.size > most
            if leads:
                if batch:
                    batch.full.set()
                batch = self._open[kind] = Batch()
            batch.tasks.append(task)
            batch.size += task.size
            if batch.size == most:
                batch.full.set()
        if leads:
            batch.full.wait(self._parameters.batch_timeout_micros / 1e6)
            with self._lock:
                if self._open.get(kind) is batch:
                    del self._open[kind]
            self._answer(signature, batch)
        return task.answer.result()

    def _answer(self, signature: str, batch: Batch) -> None:
        pad = self._parameters.pad_variable_length_inputs
        try:
            merged = {name: merge(name, [task.inputs[name] for task in batch.tasks], pad)
                      for name in batch.tasks[0].inputs}  # fmt: skip
            outputs = self._run(signature, merged)
            ends = np.cumsum([task.size for task in batch.tasks])
            if any(len(np.atleast_1d(array)) != ends[-1] for array in outputs.values()):
                raise RunnerError(
                    Code.FAILED_PRECONDITION,
                    "Batched output tensor's 0th dimension does not equal the sum of the 0th "
                    "dimension sizes of the input tensors",
                )
        except Exception as error:
            for task in batch.tasks:
                task.answer.set_exception(error)
            return
        parts = {name: np.split(array, ends[:-1]) for name, array in outputs.items()}
        for i, task in enumerate(batch.tasks):
            task.answer.set_result({name: arrays[i] for name, arrays in parts.items()})


def rows(inputs: dict[str, np.ndarray]) -> int:
    """The size of the inputs' first dimension."""
    if any(array.ndim == 0 for array in inputs.values()):
        message = "Batching session Run() input tensors must have at least one dimension"
        raise RunnerError(Code.INVALID_ARGUMENT, message)
    sizes = {len(array) for array in inputs.values()} or {0}
    if len(sizes) > 1:
        message = "Batching session Run() input tensors must have equal 0th-dimension size"
        raise RunnerError(Code.INVALID_ARGUMENT, message)
    return sizes.pop()


def merge(name: str, arrays: list[np.ndarray], pad: bool) -> np.ndarray:
    """The rows of all arrays, which must be of one shape or are padded to the longest."""
    if len({array.shape[1:] for array in arrays}) > 1:
        if not pad:
            raise RunnerError(
                Code.FAILED_PRECONDITION,
                f"Tensors with name '{name}' from different tasks have different shapes and "
                "padding is turned off. Set pad_variable_length_inputs to true, or ensure that "
                "all tensors with the same name have equal dimensions starting with the first dim.",
            )
        longest = tuple(np.max([array.shape[1:] for array in arrays], axis=0))
        arrays = [padded(array, longest) for array in arrays]
    return np.concatenate(arrays)


def padded(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Pads all but the first dimension, with the array's first value (tensorflow/serving#1279)."""
    if array.shape[1:] == shape:
        return array
    if array.size == 0:
        message = "Got empty tensor in batch of non-empty tensors."
        raise RunnerError(Code.INVALID_ARGUMENT, message)
    larger = np.empty((len(array), *shape), array.dtype)
    larger[...] = array.flat[0]
    larger[tuple(slice(size) for size in array.shape)] = array
    return larger
