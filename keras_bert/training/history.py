"""A run's history file: one row an epoch."""

from __future__ import annotations

import csv
import io
import math
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import keras

from keras_bert.errors import InputError
from keras_bert.files import write_text
from keras_bert.training.throughput import Throughput
from keras_bert.training.updates import updates_done


class History(keras.callbacks.Callback):
    """Keeps `history.csv`: one row an epoch, written in one step at the epoch's end.

    Columns: `epoch` (1 for the first), `update` (done so far), `learning_rate` (of the update
    that comes next), `seconds` (the epoch's, validation included), those of `throughput`,
    `data_wait`, then everything in fit's logs. A resumed run appends; rows past the update it
    resumes from are dropped, because those epochs are trained again.

    Args:
        path: The file.
        throughput: What an update computes, for the epoch's pace without validation.
        waited: Returns the seconds waited for data so far, such as `Waiting.seconds`: their
            share of the training time is `data_wait`.
        seconds_before: Spent on the epoch that is about to go on, before it was interrupted.

    Raises:
        InputError: when training starts, if the file is there and isn't such a table.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        throughput: Throughput | None = None,
        waited: Callable[[], float] | None = None,
        seconds_before: float = 0.0,
    ) -> None:
        super().__init__()
        self.path = pathlib.Path(path)
        self.throughput = throughput
        self.waited = waited
        self.seconds_before = seconds_before
        self._rows: list[dict[str, float]] = []
        self._started = self._trained = self._waited = 0.0
        self._first_update = 0

    def on_train_begin(self, logs: Any = None) -> None:
        columns = read_history(self.path) if self.path.exists() else {}
        rows = [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]
        start = updates_done(self.model)
        self._rows = [row for row in rows if row["update"] <= start]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._started, self._trained = time.perf_counter(), 0.0
        self._waited = self.waited() if self.waited else 0.0
        self._first_update = updates_done(self.model)

    def on_test_begin(self, logs: Any = None) -> None:
        self._trained = self._trained or time.perf_counter() - self._started

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        seconds = time.perf_counter() - self._started
        trained = self._trained or seconds
        row: dict[str, float] = {
            "epoch": epoch + 1,
            "update": updates_done(self.model),
            "learning_rate": float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)),
            "seconds": round(seconds + self.seconds_before, 3),
        }
        self.seconds_before = 0.0
        if self.throughput:
            row |= self.throughput.columns((row["update"] - self._first_update) / trained)
        if self.waited:
            row["data_wait"] = round((self.waited() - self._waited) / trained, 4)
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
