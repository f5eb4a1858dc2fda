"""Checkpoints that a run goes on from as if it had never stopped."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import keras
import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import write_json
from keras_bert.training.non_finite import NonFiniteError, all_finite
from keras_bert.training.updates import updates_done

WEIGHTS, METRICS, STATE, COMPLETE = "model.weights.h5", "metrics.npz", "state.json", "complete"
BEST = "best.json"
UNFINISHED = ".unfinished"
NAME = re.compile(r"update-\d{8,}")


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """Training has stopped on request, after saving a checkpoint."""


class StopSignals:
    """SIGTERM and Ctrl-C wait for a checkpoint: `Checkpoints(stop=...)` saves it and stops.

    A second Ctrl-C interrupts at once, as usual.

    ```python
    with StopSignals() as stop:
        model.fit(..., callbacks=[Checkpoints(folder, 1000, stop=stop)])
    ```
    """

    requested = False

    def __enter__(self) -> StopSignals:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():  # Python's rule
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(number, self._before[number])


class Checkpoints(keras.callbacks.Callback):
    """Saves what a stopped run needs to go on: weights, optimizer state and update number.

    `folder/update-00000123/` holds `model.weights.h5` (Keras stores a compiled model's
    optimizer in it), `state.json`, amid an epoch `metrics.npz` with the epoch's metrics so far,
    and, last of all, an empty file `complete`. It's written under a temporary name and renamed,
    so that a kill at any moment leaves either a whole checkpoint or one that `latest` doesn't
    see and the next run removes.

    Nothing is saved whose weights or loss aren't finite.

    Args:
        folder: Where the checkpoints go; made when the first is saved.
        every_updates: Saves as soon as so many updates have passed since the last save, and at
            the end of training.
        keep: How many of the newest stay.
        monitor: A name in the epoch's logs, such as `val_loss`: every epoch's end saves, and
            the checkpoint where it's lowest stays too. `best.json` tells which one that is.
        since: An update: epochs that ended by then don't compare, such as those evaluated on
            other data.
        within_epochs: Whether to save amid epochs too, rather than at the next epoch's end.
        stop: Once it's `requested`, saves before the next update and raises `Stopped`.
        after_save: Called once a checkpoint is there, such as to copy it away.

    Raises:
        InputError: when training starts, if the folder holds a checkpoint that's ahead of
            the model: a run that forgot to `restore`, or another run's folder.
        NonFiniteError: in place of saving.
        Stopped: see `stop`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every_updates: int,
        keep: int = 2,
        *,
        monitor: str | None = None,
        since: int = 0,
        within_epochs: bool = False,
        stop: StopSignals | None = None,
        after_save: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        if every_updates < 1:
            raise ValueError(
                f"`every_updates` must be at least 1. Received: every_updates={every_updates}."
            )
        if keep < 1:
            raise ValueError(f"`keep` must be at least 1. Received: keep={keep}.")
        self.folder = pathlib.Path(folder)
        self.every_updates = every_updates
        self.keep = keep
        self.monitor = monitor
        self.since = since
        self.within_epochs = within_epochs
        self.stop = stop
        self.after_save = after_save
        self._last_saved = self._epoch_start = 0
        self._epoch_began = 0.0
        self._best: dict[str, Any] | None = None
        self._unfinished_epoch: pathlib.Path | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._last_saved = updates_done(self.model)
        newest = latest(self.folder)
        if newest is not None and _number(newest) > self._last_saved:
            raise InputError(
                f"{newest} is ahead of this run, which starts at update {self._last_saved}: "
                "restore it to resume, or remove it."
            )
        if newest is not None:
            self._best = _read_state(newest / STATE).get("best")
            self._note_best()
            if _number(newest) == self._last_saved and (newest / METRICS).exists():
                self._unfinished_epoch = newest
        for path in self.folder.glob("update-*"):
            if NAME.fullmatch(path.name.removesuffix(UNFINISHED)) and not _is_complete(path):
                shutil.rmtree(path)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch_start, self._epoch_began = updates_done(self.model), time.perf_counter()
        if self._unfinished_epoch is not None:  # `fit` has just set the metrics to zero
            self._epoch_began -= seconds_before(self._unfinished_epoch)
            _load_metrics(self.model, self._unfinished_epoch / METRICS)
            self._unfinished_epoch = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        update = self._epoch_start + batch
        stop = self.stop is not None and self.stop.requested
        is_due = self.within_epochs and update - self._last_saved >= self.every_updates
        if (stop or is_due) and update > self._last_saved:
            if hasattr(self.model, "jax_state_sync"):
                self.model.jax_state_sync()  # JAX's step holds the weights until then
            self._save(within_epoch=batch > 0)
        if stop:
            raise Stopped

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.monitor is not None:
            value = float((logs or {})[self.monitor])
            if not self._best or self._best["update"] <= self.since or value < self._best["value"]:
                self._best = {"update": updates_done(self.model), "value": value}
        stop = self.stop is not None and self.stop.requested
        since = updates_done(self.model) - self._last_saved
        if since >= self.every_updates or (since and (stop or self.monitor is not None)):
            self._save()
        if stop:
            raise Stopped

    def on_train_end(self, logs: Any = None) -> None:
        if updates_done(self.model) > self._last_saved:
            self._save()

    def _save(self, within_epoch: bool = False) -> None:
        update = updates_done(self.model)
        if not all_finite([*self.model.variables, *self.model.optimizer.variables]):
            raise NonFiniteError(update)
        state: dict[str, Any] = {"update": update, "optimizer": type(self.model.optimizer).__name__}
        if self._best is not None:
            state["best"] = self._best
        checkpoint = self.folder / f"update-{update:08d}"
        unfinished = checkpoint.with_name(checkpoint.name + UNFINISHED)
        unfinished.mkdir(parents=True)
        if within_epoch:
            state["epoch_seconds"] = round(time.perf_counter() - self._epoch_began, 3)
            _save_metrics(self.model, unfinished / METRICS)
        write_checkpoint(self.model, unfinished, state)
        os.replace(unfinished, checkpoint)
        self._last_saved = update
        self._note_best()
        best = None if self._best is None else self._best["update"]
        for old in _complete_ones(self.folder)[: -self.keep]:
            if _number(old) != best:
                (old / COMPLETE).unlink()  # First, lest a kill leaves half of it looking whole.
                shutil.rmtree(old)
        self.after_save()

    def _note_best(self) -> None:
        if self._best is not None:
            name = f"update-{self._best['update']:08d}"
            write_json(self.folder / BEST, {"checkpoint": name, **self._best})


def write_checkpoint(model: keras.Model, folder: pathlib.Path, state: dict[str, Any]) -> None:
    """Fills a folder that `restore` reads; `complete` comes last."""
    model.save_weights(folder / WEIGHTS)
    write_json(folder / STATE, state)
    (folder / COMPLETE).touch()


def _save_metrics(model: keras.Model, path: pathlib.Path) -> None:
    np.savez(path, *map(keras.ops.convert_to_numpy, model.metrics_variables))


def _load_metrics(model: keras.Model, path: pathlib.Path) -> None:
    with np.load(path) as file:
        values = [file[f"arr_{i}"] for i in range(len(file.files))]
    if [value.shape for value in values] != [tuple(v.shape) for v in model.metrics_variables]:
        raise InputError(
            f"{path} holds the metrics of another model: remove the checkpoint to resume from an "
            "older one."
        )
    for variable, value in zip(model.metrics_variables, values, strict=True):
        variable.assign(value)


def latest(folder: str | os.PathLike[str]) -> pathlib.Path | None:
    """The newest complete checkpoint in `folder`, or None."""
    return next(reversed(_complete_ones(pathlib.Path(folder))), None)


def best(folder: str | os.PathLike[str]) -> pathlib.Path | None:
    """The checkpoint of the lowest `monitor`, which `Checkpoints` keeps; or None."""
    newest = latest(folder)
    found = None if newest is None else _read_state(newest / STATE).get("best")
    return None if found is None else pathlib.Path(folder) / f"update-{found['update']:08d}"


def seconds_before(checkpoint: str | os.PathLike[str] | None) -> float:
    """Seconds that an epoch had taken when this checkpoint was saved amid it; else 0."""
    if checkpoint is None:
        return 0.0
    return float(_read_state(pathlib.Path(checkpoint) / STATE).get("epoch_seconds", 0))


def restore(model: keras.Model, checkpoint: str | os.PathLike[str], batch: Any = None) -> int:
    """Puts a checkpoint's weights and optimizer state into a compiled model.

    Args:
        model: Compiled as it was.
        checkpoint: From `latest`.
        batch: (inputs, labels, weights) for a checkpoint saved amid an epoch: the model's
            metrics are made for their shapes, and `Checkpoints` fills them as `fit` begins.

    Returns:
        The number of updates done, which `model.optimizer.iterations` now holds too: the
        learning-rate schedule goes on from there, and the caller skips that many batches.

    Raises:
        ValueError: the model isn't compiled.
        InputError: the checkpoint is unfinished or damaged, or was made with another model
            or optimizer. The model's variables may then be partly overwritten.
    """
    checkpoint = pathlib.Path(checkpoint)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError(f"`model` must be compiled. Received: model={model!r}.")
    if not _is_complete(checkpoint):
        raise InputError(
            f"{checkpoint} isn't a finished checkpoint: it has no file named `{COMPLETE}`."
        )
    state = _read_state(checkpoint / STATE)
    if state["optimizer"] != type(optimizer).__name__:
        raise InputError(
            f"{checkpoint / STATE}: made with the optimizer {state['optimizer']}, and this run "
            f"uses {type(optimizer).__name__}: use the same, or start without this checkpoint."
        )
    # Under a TensorFlow strategy, new variables belong in its scope.
    strategy = getattr(model, "distribute_strategy", None)
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        if batch is not None:
            model._symbolic_build(data_batch=batch)
    weights = checkpoint / WEIGHTS
    try:
        with warnings.catch_warnings():
            # Keras warns, and goes on, when the optimizer's variables don't fit.
            warnings.filterwarnings("error", message="Skipping variable loading")
            model.load_weights(weights)
    except (OSError, ValueError, KeyError, UserWarning) as error:
        reason = str(error).split("\n")[0].rstrip(":")  # Keras goes on to list every layer.
        raise InputError(
            f"{weights} doesn't load into this model; it's damaged or from another model: "
            f"remove the checkpoint to resume from an older one. ({reason})"
        ) from error
    if updates_done(model) != state["update"]:
        raise InputError(
            f"{weights} is of update {updates_done(model)}, but {STATE} beside it says "
            f"{state['update']}: remove the checkpoint to resume from an older one."
        )
    return updates_done(model)


def _read_state(path: pathlib.Path) -> dict[str, Any]:
    try:
        state = dict(json.loads(path.read_text(encoding="utf-8")))
        return state | {"update": int(state["update"]), "optimizer": str(state["optimizer"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is missing or damaged ({error!r}): remove the checkpoint to resume from "
            "an older one."
        ) from error


def _is_complete(checkpoint: pathlib.Path) -> bool:
    return checkpoint.suffix != UNFINISHED and (checkpoint / COMPLETE).is_file()


def _complete_ones(folder: pathlib.Path) -> list[pathlib.Path]:
    """Oldest first."""
    found = [path for path in folder.glob("update-*") if NAME.fullmatch(path.name)]
    return sorted(filter(_is_complete, found), key=_number)


def _number(checkpoint: pathlib.Path) -> int:
    return int(checkpoint.name.removeprefix("update-"))
