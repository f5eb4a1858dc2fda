"""A loss that isn't finite: noticed without waiting for the device, then traced to its origin.

Training goes on for a few updates before the bar's own metrics, which come back in the
background, show that something broke. What broke first is found by training again from the last
checkpoint: updates are functions of their numbers, so the same ones break.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert.training.updates import updates_done


class NonFiniteError(ArithmeticError):
    """The loss or the weights aren't finite, after `update` updates or earlier."""

    def __init__(self, update: int) -> None:
        super().__init__(f"the loss or a weight isn't finite any more at update {update}")
        self.update = update


def all_finite(variables: Iterable[Any]) -> bool:
    """Whether all numbers in them are."""
    floats = [v for v in variables if "float" in keras.backend.standardize_dtype(v.dtype)]
    # One value leaves the device, not one a variable.
    return bool(ops.all(ops.stack([ops.all(ops.isfinite(v.value)) for v in floats])))


class StopAtNonFinite(keras.callbacks.Callback):
    """Raises `NonFiniteError` once the loss in the logs isn't finite.

    The logs come from another thread: no update waits for them, so that a few more may have
    been made. Let it come before callbacks that write files.
    """

    async_safe = True

    def __init__(self) -> None:
        super().__init__()
        self._epoch_start, self._found = 0, False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch_start = updates_done(self.model)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._found:
            raise NonFiniteError(self._epoch_start + batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # A mean over the epoch: once it isn't finite, it stays so.
        self._found = self._found or not math.isfinite((logs or {}).get("loss", 0.0))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._found:
            raise NonFiniteError(updates_done(self.model))


class _StopAtOnce(keras.callbacks.Callback):
    """The same, waiting for every step, so that the number is that of the step's last update."""

    def on_train_begin(self, logs: Any = None) -> None:
        self._start = updates_done(self.model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not math.isfinite((logs or {})["loss"]):
            raise NonFiniteError(self._start + batch + 1)


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where numbers first weren't finite.

    Attributes:
        update: The update, counted from 1.
        layer: Path of the first layer with such an output; empty if it's the gradient alone.
        rows: Rows of the batch in which they are; empty where that can't be told.
        batch: (inputs, labels, weights) of that update, as arrays.
    """

    update: int
    layer: str
    rows: list[int]
    batch: Any

    def __str__(self) -> str:
        if not self.layer:
            return f"update {self.update}: the gradient isn't finite, though every output is"
        more = f" and {len(self.rows) - 1} more" if len(self.rows) > 1 else ""
        row = f", in row {self.rows[0]} of the batch{more}" if self.rows else ""
        return f"update {self.update}: the output of {self.layer} is the first not finite{row}"


def find_origin(
    begin: Callable[[], keras.Model], batches: Callable[[int], Any], limit: int
) -> tuple[Origin, keras.Model] | None:
    """Trains again from the last good state and looks at the update that breaks.

    Twice: once to learn its number, and once to stop before it.

    Args:
        begin: Returns the compiled model in its last good state.
        batches: Returns the `tf.data` of the batches from an update on.
        limit: The update until which the loss broke.

    Returns:
        The origin, and the model as it was before that update; None if nothing breaks this
        time, as when operations aren't deterministic or the hardware failed.
    """
    model = begin()
    start = updates_done(model)
    broken = max(limit, start + 1)
    try:
        _fit(model, batches(start), broken - start, [_StopAtOnce()])
    except NonFiniteError as error:
        broken = min(error.update, broken)
    model = begin()
    # A gradient that isn't finite shows in the loss of the next update.
    before = max(start, broken - model.steps_per_execution - 1)
    if before > start:
        _fit(model, batches(start), before - start, [])
    for update, batch in enumerate(itertools.islice(batches(before), broken - before), before + 1):
        arrays = keras.tree.map_structure(np.asarray, batch)
        layer, rows = first_layer(model, arrays[0])
        if layer:
            return Origin(update, layer, rows, arrays), model
        variables = [*model.variables, *model.optimizer.variables]
        values = [ops.convert_to_numpy(variable) for variable in variables]
        model.train_on_batch(*arrays)
        if not all_finite(model.trainable_variables):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            return Origin(update, "", [], arrays), model
    return None


def _fit(model: keras.Model, batches: Any, steps: int, callbacks: list[Any]) -> None:
    model.fit(
        batches.take(steps),
        steps_per_epoch=steps,
        verbose=0,
        shuffle=False,
        callbacks=callbacks,
    )


def first_layer(model: Any, inputs: dict[str, np.ndarray]) -> tuple[str, list[int]]:
    """The first layer whose output isn't finite, under the dropout of the update to come.

    Args:
        model: A compiled `keras_bert.training.Model`.
        inputs: Of the global batch.

    Returns:
        Its path and the rows in which that is; an empty path where all is finite.
    """
    parts = model.replicas() * model.accumulate
    size = -(-len(next(iter(inputs.values()))) // parts)
    for part in range(parts):
        rows = {name: x[part * size : (part + 1) * size] for name, x in inputs.items()}
        replica, micro_batch = divmod(part, model.accumulate)
        with _watched(model) as found, keras.StatelessScope():
            model._draw_by_update(model.optimizer.iterations, replica, micro_batch)
            with model.drawing(model._random_states):
                model(rows, training=True)
        if found:
            layer, bad = found[0]
            return layer, [part * size + int(row) for row in bad]
    return "", []


@contextlib.contextmanager
def _watched(model: keras.Model) -> Iterator[list[tuple[str, np.ndarray]]]:
    """Collects (path, rows) of layers whose outputs aren't finite, in the order they end."""
    found: list[tuple[str, np.ndarray]] = []
    layers = [layer for layer in model._flatten_layers() if layer is not model]

    def watch(layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def watched(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            for x in keras.tree.flatten(outputs):
                values = ops.convert_to_numpy(ops.cast(x, "float32"))
                bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
                if bad.any():
                    found.append((layer.path, np.flatnonzero(bad)))
            return outputs

        return watched

    for layer in layers:
        layer.call = watch(layer, layer.call)
    try:
        yield found
    finally:
        for layer in layers:
            del layer.call


def save_batch(path: str | os.PathLike[str], batch: Any) -> None:
    """Writes (inputs, labels, weights) to an .npz file, for `load_batch`."""
    parts = zip(("inputs", "labels", "weights"), batch, strict=True)
    np.savez(path, **{f"{part}/{name}": x for part, xs in parts for name, x in xs.items()})


def load_batch(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], ...]:
    """Reads (inputs, labels, weights) of a batch that broke a run.

    ```python
    preset.model.compile(...)  # as in the run
    callbacks.restore(preset.model, "RUN/checkpoints/non-finite")  # before the update
    batch = callbacks.load_batch("RUN/checkpoints/non-finite/batch.npz")
    callbacks.first_layer(preset.model, batch[0])
    ```
    """
    parts: dict[str, dict[str, np.ndarray]] = {"inputs": {}, "labels": {}, "weights": {}}
    with np.load(path) as file:
        for key in file.files:
            part, name = key.split("/", 1)
            parts[part][name] = file[key]
    return tuple(parts.values())
