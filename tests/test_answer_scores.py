"""Exact match and F1 by the official rules, the no-answer threshold, average precision."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from test_cases import case  # noqa: F401 - a fixture

from keras_bert.answer_scores import (
    average_precision,
    best_agreement,
    best_threshold,
    cmrc_agreement,
    cmrc_segments,
    squad_agreement,
)
from keras_bert.data.questions import read_questions

SETS = {
    "squad_v1": "data/benchmark/squad_v1/dev.json",
    "squad_v2": "data/benchmark/squad_v2/dev.json",
    "cmrc2018_trial": "data/extractive_qa/cmrc2018/cmrc2018_trial.squad.json",
}


@pytest.mark.filterwarnings("ignore:.*5 answers stand up to 3 characters")
def test_official_scores_row_by_row(shared):
    rows = json.loads(shared("golden/qa_metrics.json").read_text(encoding="utf-8"))["rows"]
    truths = {
        (name, question.id): [answer.text for answer in question.answers]
        for name, path in SETS.items()
        for question in read_questions(shared(path))
    }
    assert len(rows) == 1311
    for row in rows:
        rules = cmrc_agreement if row["set"] == "cmrc2018_trial" else squad_agreement
        found = best_agreement(rules, row["prediction"], truths[row["set"], row["id"]])
        assert found == pytest.approx((row["exact_match"], row["f1"]), abs=1e-9), row


def test_squad(case):  # noqa: F811
    """QA-08."""
    given, expected = case("QA-08")
    for i, (prediction, truth) in enumerate(given["pairs"]):
        found = squad_agreement(prediction, truth)
        assert found == pytest.approx((expected["em"][i], expected["f1"][i]), abs=1e-6)


def test_several_true_answers_and_none():
    assert best_agreement(squad_agreement, "Denver", ["Denver Broncos", "the Denver"]) == (1, 1)
    assert best_agreement(squad_agreement, "", []) == (1, 1)
    assert best_agreement(squad_agreement, "x", []) == (0, 0)
    assert best_agreement(squad_agreement, "", [".", "a b"]) == (0, 0)


def test_cmrc():
    assert cmrc_segments("《Nexon》的 3-5 years。") == ["nexon", "的", "35", "years"]
    assert cmrc_agreement("俗名龙尖。", "俗名龙尖") == (1, 1)
    # The longest common run is 2 of 3 and of 4 segments.
    assert cmrc_agreement("甲乙丙", "乙丙丁戊").f1 == pytest.approx(2 * (2 / 3) * (2 / 4) / (7 / 6))
    assert cmrc_agreement("", "甲") == (0, 0)
    assert best_agreement(cmrc_agreement, "", []) == (1, 1)
    assert best_agreement(cmrc_agreement, "甲", []) == (0, 0)


def test_the_threshold_is_the_best_of_all():
    rng = np.random.default_rng(0)
    for count in itertools.chain([1, 1, 2, 2], [7] * 50):
        odds = rng.integers(-3, 4, count).astype(float)
        answering, silent = rng.random(count), rng.integers(0, 2, count)
        threshold = best_threshold(odds, answering, silent)
        assert np.isfinite(threshold)

        def total(at):
            return np.where(odds > at, silent, answering).sum()  # noqa: B023

        best = max(total(at) for at in np.arange(-4.5, 5))
        assert total(threshold) == pytest.approx(best)


def test_average_precision():
    assert average_precision([3, 2, 1], [True, False, True]) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision([1, 1, 1, 1], [True, False, False, False]) == 0.25  # ties: the share
    assert average_precision([2, 1, 1], [False, True, True]) == pytest.approx(2 / 3)
    assert np.isnan(average_precision([1], [False]))
