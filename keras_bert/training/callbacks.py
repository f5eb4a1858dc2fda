"""Callbacks of a training run: a live bar, a history file, checkpoints to resume from.

Each of them counts updates by `model.optimizer.iterations`, the number that the learning-rate
schedule counts, so that a resumed run goes on where the first one stopped. Keras brings that
variable up to date on every backend before it calls `on_epoch_begin` and `on_epoch_end`.
"""

from __future__ import annotations

from keras_bert.training.history import History, read_history
from keras_bert.training.non_finite import (
    NonFiniteError,
    StopAtNonFinite,
    find_origin,
    first_layer,
    load_batch,
    save_batch,
)
from keras_bert.training.progress import ProgressBar, TensorBoard
from keras_bert.training.saving import (
    Checkpoints,
    Stopped,
    StopSignals,
    best,
    latest,
    restore,
    seconds_before,
    write_checkpoint,
)
from keras_bert.training.throughput import Throughput
from keras_bert.training.updates import updates_done

__all__ = [
    "Checkpoints",
    "History",
    "NonFiniteError",
    "ProgressBar",
    "StopAtNonFinite",
    "StopSignals",
    "Stopped",
    "TensorBoard",
    "Throughput",
    "best",
    "find_origin",
    "first_layer",
    "latest",
    "load_batch",
    "read_history",
    "restore",
    "save_batch",
    "seconds_before",
    "updates_done",
    "write_checkpoint",
]
