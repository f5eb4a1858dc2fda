"""A live bar over a whole run, and TensorBoard without its cost."""

from __future__ import annotations

import atexit
import datetime
import sys
import time
from collections.abc import Mapping
from typing import Any

import keras

from keras_bert.training.throughput import Throughput
from keras_bert.training.updates import updates_done


class TensorBoard(keras.callbacks.TensorBoard):
    """Keras's, of which a write an epoch doesn't make every step wait for the last one's metrics.

    Leave `update_freq` and `profile_batch` as they are.
    """

    async_safe = True

    def __init__(self, log_dir: Any, **kwargs: Any) -> None:
        # Writing the graph reads the weights, which a step of JAX has given away.
        super().__init__(log_dir, write_graph=False, **kwargs)


class ProgressBar(keras.callbacks.Callback):
    """One bar over a whole `fit(verbose=0)`, its epochs and validations included.

    It shows the updates done, updates per second, the time left, what `throughput` makes of the
    pace, and the metrics. Where standard output is no terminal, it prints one plain line an
    epoch. The bar begins at the optimizer's own count, so a resumed run begins where it was.

    Args:
        total_updates: The count at which the run will be done.
        description: A word before the bar, such as the name of a phase.
        throughput: What an update computes.
    """

    # Keras may call `on_*_batch_end` from another thread: the next step is then started
    # without waiting for this one's metrics to come back from the device.
    async_safe = True

    def __init__(
        self, total_updates: int, description: str = "", throughput: Throughput | None = None
    ) -> None:
        super().__init__()
        if total_updates < 1:
            raise ValueError(
                f"`total_updates` must be at least 1. Received: total_updates={total_updates}."
            )
        self.total_updates = total_updates
        self.description = description
        self.throughput = throughput
        self._progress: Any = None
        self._epoch_start, self._started = 0, 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        self.close()
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
        self._epoch_start, self._started = updates_done(self.model), time.perf_counter()

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
        speed = (update - self._epoch_start) / (time.perf_counter() - self._started)
        left = datetime.timedelta(seconds=round((self.total_updates - update) / speed))
        parts = [self.description, f"epoch {epoch + 1}", f"update {update}/{self.total_updates}"]
        parts += [
            _short(logs),
            self._pace(speed),
            f"{left} left" if update < self.total_updates else "",
        ]
        print("  ".join(filter(None, parts)), flush=True)

    def on_train_end(self, logs: Any = None) -> None:
        self.close()

    def _show(self, update: float, metrics: str) -> None:
        speed = self._progress.tasks[0].speed
        pace = "" if speed is None else f"{speed:.3g}/s  {self._pace(speed)}".rstrip()
        self._progress.update(self._task, completed=update, speed=pace, metrics=metrics)

    def _pace(self, speed: float) -> str:
        return "" if self.throughput is None else self.throughput.text(speed)

    def close(self) -> None:
        """Gives the terminal back where an exception has ended `fit`."""
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
