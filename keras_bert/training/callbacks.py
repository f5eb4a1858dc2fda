"""Callbacks of a training run: a live bar, a history file, checkpoints to resume from.

Each of them counts updates by `model.optimizer.iterations`, the number that the learning-rate
schedule counts, so that a resumed run goes on where the first one stopped. Keras brings that
variable up to date on every backend before it calls `on_epoch_begin` and `on_epoch_end`.
"""

from __future__ import annotations

import atexit
import contextlib
import csv
import io
import json
import math
import os
import pathlib
import re
import shutil
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any

import keras

from keras_bert.errors import InputError
from keras_bert.files import write_json, write_text

WEIGHTS, STATE, COMPLETE = "model.weights.h5", "state.json", "complete"
UNFINISHED = ".unfinished"
NAME = re.compile(r"update-\d{8,}")


def updates_done(model: keras.Model) -> int:
    """The number of updates that the compiled model's optimizer has made."""
    # `int(variable)` alone doesn't read a variable that a TensorFlow strategy mirrors.
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))


class ProgressBar(keras.callbacks.Callback):
    """One bar over a whole `fit(verbose=0)`, its epochs and validations included.

    It shows the updates done, updates per second, the time left and the metrics. Where
    standard output is no terminal, it prints one plain line an epoch. The bar begins at the
    optimizer's own count, so a resumed run begins where it was.

    Args:
        total_updates: The count at which the run will be done.
        description: A word before the bar, such as the name of a phase.
    """

    # Keras may call `on_*_batch_end` from another thread: the next step is then started
    # without waiting for this one's metrics to come back from the device.
    async_safe = True

    def __init__(self, total_updates: int, description: str = "") -> None:
        super().__init__()
        if total_updates < 1:
            raise ValueError(
                f"`total_updates` must be at least 1. Received: total_updates={total_updates}."
            )
        self.total_updates = total_updates
        self.description = description
        self._progress: Any = None
        self._epoch_start = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._stop()
        if sys.stdout.isatty():
            self._progress = _rich_progress()
            self._task = self._progress.add_task(
                self.description,
                total=self.total_updates,
                completed=updates_done(self.model),
                speed="",
                metrics="",
            )
            self._progress.start()
            # `on_train_end` isn't called when fit raises: give the terminal its cursor back.
            atexit.register(self._progress.stop)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch_start = updates_done(self.model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._progress is None:
            return
        # `batch` is the last of the call's `steps_per_execution` batches, and is past the
        # end in an epoch's last, shorter call: `on_epoch_end` has the exact number.
        update = min(self._epoch_start + batch + 1, self.total_updates)
        self._show(max(update, self._progress.tasks[0].completed), _short(logs))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._progress is not None:
            metrics = f"validation: batch {batch + 1}  {_short(logs)}"
            self._progress.update(self._task, metrics=metrics)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        update = updates_done(self.model)
        if self._progress is not None:
            self._show(update, _short(logs))
            return
        parts = [self.description, f"epoch {epoch + 1}", f"update {update}/{self.total_updates}"]
        print("  ".join([*filter(None, parts), _short(logs)]), flush=True)

    def on_train_end(self, logs: Any = None) -> None:
        self._stop()

    def _show(self, update: float, metrics: str) -> None:
        speed = self._progress.tasks[0].speed
        self._progress.update(
            self._task,
            completed=update,
            speed="" if speed is None else f"{speed:.3g}/s",
            metrics=metrics,
        )

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            atexit.unregister(self._progress.stop)
            self._progress = None


def _rich_progress() -> Any:
    from rich import console, progress, table

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=20),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[speed]}", markup=False),
        progress.TimeRemainingColumn(compact=True),
        progress.TextColumn(
            "{task.fields[metrics]}",
            markup=False,
            table_column=table.Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
        console=console.Console(),
        expand=True,
    )


def _short(logs: Mapping[str, float] | None) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in (logs or {}).items())


class History(keras.callbacks.Callback):
    """Keeps `history.csv`: one row an epoch, written in one step at the epoch's end.

    Columns: `epoch` (1 for the first), `update` (done so far), `learning_rate` (of the update
    that comes next), `seconds` (the epoch's, validation included), then everything in fit's
    logs. A resumed run appends; rows past the update it resumes from are dropped, because
    those epochs are trained again.

    Args:
        path: The file.

    Raises:
        InputError: when training starts, if the file is there and isn't such a table.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = pathlib.Path(path)
        self._rows: list[dict[str, float]] = []
        self._started = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        columns = read_history(self.path) if self.path.exists() else {}
        rows = [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]
        start = updates_done(self.model)
        self._rows = [row for row in rows if row["update"] <= start]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._started = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        row = {
            "epoch": epoch + 1,
            "update": updates_done(self.model),
            "learning_rate": float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)),
            "seconds": round(time.perf_counter() - self._started, 3),
        }
        self._rows.append(row | {name: float(value) for name, value in (logs or {}).items()})
        self._write()

    def _write(self) -> None:
        names = list(dict.fromkeys(name for row in self._rows for name in row))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        for row in self._rows:
            counts = [int(row["epoch"]), int(row["update"])]
            writer.writerow(counts + [row.get(name, math.nan) for name in names[2:]])
        write_text(self.path, text.getvalue())


def read_history(path: str | os.PathLike[str]) -> dict[str, list[float]]:
    """Reads what `History` wrote: column name -> its values, one an epoch.

    A value that an epoch didn't have (no validation, say) is NaN.

    Raises:
        InputError: the file isn't a table of numbers with the columns `epoch` and `update`.
    """
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            names = next(reader, [])
            if names[:2] != ["epoch", "update"]:
                raise ValueError(f"the columns are {names}, not epoch, update, ...")
            rows = []
            for row in reader:
                if len(row) != len(names):
                    raise ValueError(f"{len(row)} values for {len(names)} columns")
                rows.append([float(value) for value in row])
        except (ValueError, csv.Error) as error:
            raise InputError(
                f"{path}, line {max(reader.line_num, 1)}: not a history of a training run "
                f"({error}): repair or remove the file."
            ) from error
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


class Checkpoints(keras.callbacks.Callback):
    """Saves what a killed run needs to go on: weights, optimizer state and update number.

    `folder/update-00000123/` holds `model.weights.h5` (Keras stores a compiled model's
    optimizer in it), `state.json` and, last of all, an empty file `complete`. It's written
    under a temporary name and renamed, so that a kill at any moment leaves either a whole
    checkpoint or one that `latest` doesn't see and the next run removes.

    Args:
        folder: Where the checkpoints go; made when the first is saved.
        every_updates: An epoch's end saves once at least so many updates have passed since
            the last save. The end of training always saves.
        keep: How many of the newest stay.

    Raises:
        InputError: when training starts, if the folder holds a checkpoint that's ahead of
            the model: a run that forgot to `restore`, or another run's folder.
    """

    def __init__(self, folder: str | os.PathLike[str], every_updates: int, keep: int = 2) -> None:
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
        self._last_saved = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._last_saved = updates_done(self.model)
        newest = latest(self.folder)
        if newest is not None and _number(newest) > self._last_saved:
            raise InputError(
                f"{newest} is ahead of this run, which starts at update {self._last_saved}: "
                "restore it to resume, or remove it."
            )
        for path in self.folder.glob("update-*"):
            if NAME.fullmatch(path.name.removesuffix(UNFINISHED)) and not _is_complete(path):
                shutil.rmtree(path)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if updates_done(self.model) - self._last_saved >= self.every_updates:
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        if updates_done(self.model) > self._last_saved:
            self._save()

    def _save(self) -> None:
        update = updates_done(self.model)
        checkpoint = self.folder / f"update-{update:08d}"
        unfinished = checkpoint.with_name(checkpoint.name + UNFINISHED)
        unfinished.mkdir(parents=True)
        self.model.save_weights(unfinished / WEIGHTS)
        state = {"update": update, "optimizer": type(self.model.optimizer).__name__}
        write_json(unfinished / STATE, state)
        (unfinished / COMPLETE).touch()
        os.replace(unfinished, checkpoint)
        self._last_saved = update
        for old in _complete_ones(self.folder)[: -self.keep]:
            (old / COMPLETE).unlink()  # First, lest a kill leaves half of it looking whole.
            shutil.rmtree(old)


def latest(folder: str | os.PathLike[str]) -> pathlib.Path | None:
    """The newest complete checkpoint in `folder`, or None."""
    return next(reversed(_complete_ones(pathlib.Path(folder))), None)


def restore(model: keras.Model, checkpoint: str | os.PathLike[str]) -> int:
    """Puts a checkpoint's weights and optimizer state into a compiled model.

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
    if not optimizer.built:
        # Under a TensorFlow strategy, new variables belong in its scope.
        strategy = getattr(model, "distribute_strategy", None)
        with strategy.scope() if strategy is not None else contextlib.nullcontext():
            optimizer.build(model.trainable_variables)
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
        state = json.loads(path.read_text(encoding="utf-8"))
        return {"update": int(state["update"]), "optimizer": str(state["optimizer"])}
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
