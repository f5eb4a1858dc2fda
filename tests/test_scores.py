"""Scores against values by hand and against those of scikit-learn 1.x and SciPy 1.x."""

import math

import numpy as np
import pytest

from keras_bert import scores


def sample():
    """200 rows of three classes, with as many wrong guesses as right ones."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, 200)
    return true, np.where(rng.random(200) < 0.5, true, rng.integers(0, 3, 200))


def test_by_hand():
    """3 true positives, 1 false one, 1 missed, 2 true negatives."""
    true, predicted = [1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 1, 0, 0]
    assert scores.accuracy(true, predicted) == pytest.approx(5 / 7)
    assert scores.f1(true, predicted) == pytest.approx(6 / 8)
    assert scores.f1(true, predicted, positive=0) == pytest.approx(4 / 6)
    assert scores.macro_f1(true, predicted, (0, 1)) == pytest.approx((6 / 8 + 4 / 6) / 2)
    assert scores.matthews(true, predicted) == pytest.approx((3 * 2 - 1 * 1) / math.sqrt(144))
    assert scores.ranks([10, 20, 20, 5]).tolist() == [2, 3.5, 3.5, 1]
    assert scores.spearman([1, 2, 3, 4], [1, 4, 9, 16]) == pytest.approx(1)
    assert scores.pearson([1, 2, 3], [1, 2, 2]) == pytest.approx(math.sqrt(3) / 2)


def test_against_scikit_learn_and_scipy():
    true, predicted = sample()
    assert scores.accuracy(true, predicted) == pytest.approx(0.65)
    assert scores.macro_f1(true, predicted, range(3)) == pytest.approx(0.6493389422224869)
    assert scores.matthews(true, predicted) == pytest.approx(0.4776661571369925)
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 6, 100), rng.normal(size=100).round(1)
    y = y + x / 3
    assert scores.pearson(x, y) == pytest.approx(0.6774369155862732)
    assert scores.spearman(x, y) == pytest.approx(0.6766877884330704)


def test_a_class_that_is_nowhere_has_no_f1():
    assert scores.macro_f1([0, 0, 1], [0, 0, 1], range(3)) == 1
    assert scores.macro_f1([0, 0, 1], [0, 0, 2], range(3)) == pytest.approx(1 / 3)


def test_several_labels():
    true = np.array([[1, 0], [1, 1], [0, 0]], bool)
    predicted = np.array([[1, 0], [0, 1], [0, 1]], bool)
    assert scores.accuracy(true, predicted) == pytest.approx(1 / 3)
    assert scores.micro_f1(true, predicted) == pytest.approx(4 / 6)
    assert scores.macro_f1(true, predicted, "ab") == pytest.approx((2 / 3 + 2 / 3) / 2)


def test_one_answer_to_everything_is_no_correlation():
    """Where scikit-learn and SciPy warn, or give NaN."""
    assert scores.matthews([0, 1, 1], [1, 1, 1]) == 0
    assert scores.pearson([1, 2, 3], [5, 5, 5]) == 0
    assert scores.spearman([1, 2, 3], [5, 5, 5]) == 0
    assert scores.f1([0, 0], [0, 0]) == 0
    assert math.isnan(scores.spearman([1, 2], [math.nan, 1]))


def test_best_threshold():
    true = np.array([[True], [True], [False], [False]])
    assert scores.best_threshold(true, [[0.3], [0.28], [0.2], [0.1]]) == 0.25
    assert scores.best_threshold(true, [[0.9], [0.8], [0.2], [0.1]]) == 0.5
