"""Scores of classifications and regressions, as their benchmarks define them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def accuracy(true: Any, predicted: Any) -> float:
    """The share of right answers; of several labels a row, (N, C), the whole row must be right."""
    right = np.asarray(true) == np.asarray(predicted)
    return float(right.reshape(len(right), -1).all(axis=1).mean())


def f1(true: Any, predicted: Any, positive: Any = 1) -> float:
    """2 P R / (P + R) of one class; 0 where it neither occurs nor is predicted."""
    true, predicted = np.asarray(true) == positive, np.asarray(predicted) == positive
    both = true.sum() + predicted.sum()
    return float(2 * (true & predicted).sum() / both) if both else 0.0


def macro_f1(true: Any, predicted: Any, classes: Sequence[Any]) -> float:
    """The mean of the classes' F1, each counting alike.

    Of classes, (N,), or of several labels a row, bool (N, C), whose columns are `classes`. Of
    classes, those that neither occur nor are predicted are left out, as scikit-learn does.
    """
    true, predicted = np.asarray(true), np.asarray(predicted)
    if true.ndim == 2:
        return float(np.mean([f1(true[:, i], predicted[:, i]) for i in range(len(classes))]))
    present = [each for each in classes if (true == each).any() or (predicted == each).any()]
    return float(np.mean([f1(true, predicted, each) for each in present]))


def micro_f1(true: Any, predicted: Any) -> float:
    """F1 over all labels of all rows together: bool (N, C)."""
    return f1(np.ravel(true), np.ravel(predicted))


def matthews(true: Any, predicted: Any) -> float:
    """Matthews' correlation for any number of classes; 0 where either side is constant.

    References:
        - [Gorodkin, 2004](https://doi.org/10.1016/j.compbiolchem.2004.09.006), equation 8.
    """
    true, predicted = np.asarray(true), np.asarray(predicted)
    classes = np.unique(np.concatenate([true, predicted]))
    t = true[:, None] == classes  # (N, C)
    p = predicted[:, None] == classes
    t_sums, p_sums, count = t.sum(axis=0, dtype=float), p.sum(axis=0, dtype=float), len(true)
    covariance = float((t & p).sum()) * count - t_sums @ p_sums
    spread = (count**2 - p_sums @ p_sums) * (count**2 - t_sums @ t_sums)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def pearson(true: Any, predicted: Any) -> float:
    """The linear correlation; 0 where either side is constant, NaN where it isn't finite."""
    x, y = np.asarray(true, np.float64), np.asarray(predicted, np.float64)
    x, y = x - x.mean(), y - y.mean()
    spread = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / spread) if spread != 0 else 0.0


def spearman(true: Any, predicted: Any) -> float:
    """The correlation of the ranks; equals share the mean of their ranks."""
    if not (np.isfinite(true).all() and np.isfinite(predicted).all()):
        return float("nan")
    return pearson(ranks(true), ranks(predicted))


def ranks(values: Any) -> np.ndarray:
    """1 for the least, ...; the mean rank for equals: float64 (N,)."""
    _, which, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[which]


def best_threshold(true: Any, probabilities: Any) -> float:
    """The threshold in 0.05, 0.1, ..., 0.95 of the best micro F1, the nearest to 0.5 of equals.

    Args:
        true: bool (N, C), the labels that hold.
        probabilities: float (N, C).
    """
    candidates = sorted(np.arange(1, 20) / 20, key=lambda each: abs(each - 0.5))
    found = [micro_f1(true, np.asarray(probabilities) >= each) for each in candidates]
    return float(candidates[int(np.argmax(found))])
