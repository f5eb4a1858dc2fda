"""The weights of the epoch with the best score."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np


class BestEpoch(keras.callbacks.Callback):
    """Scores each epoch, puts the best one's weights back at the end, and may stop early.

    The scores join fit's logs as `val_NAME`, for the callbacks behind this one. A score that is
    no number is worse than any other, and so is the score of weights that aren't numbers: a model
    that says nothing but NaN gets the same class's share right as one that always names it.
    Training stops there, as nothing brings such weights back.

    Args:
        score: Scores by name, of the weights as they are.
        metric: The one that counts; higher is better, and of equals the earlier.
        patience: Epochs without a better score after which training stops; 0: it never does.
    """

    def __init__(self, score: Callable[[], dict[str, float]], metric: str, patience: int = 0):
        super().__init__()
        self.score = score
        self.metric = metric
        self.patience = patience
        self.scores: dict[str, float] = {}
        self.best_epoch = 0
        self.seconds = 0.0
        self._weights: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Scores and compares."""
        started = time.perf_counter()
        weights = self.model.get_weights()
        if all(np.isfinite(each).all() for each in weights):
            scores = self.score()
        else:
            scores = dict.fromkeys(self.scores or [self.metric], math.nan)
            self.model.stop_training = True
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in scores.items()})
        if not self.scores or value_of(scores, self.metric) > value_of(self.scores, self.metric):
            self.scores, self.best_epoch, self._weights = scores, epoch + 1, weights
        elif self.patience and epoch + 1 - self.best_epoch >= self.patience:
            self.model.stop_training = True
        self.seconds += time.perf_counter() - started

    def on_train_end(self, logs: Any = None) -> None:
        """Restores the best."""
        if self._weights:
            self.model.set_weights(self._weights)


def value_of(scores: dict[str, float], metric: str) -> float:
    """A score that NaN doesn't win by."""
    return -math.inf if math.isnan(scores[metric]) else scores[metric]
