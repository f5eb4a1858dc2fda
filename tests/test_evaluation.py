"""Scores of a pretraining model, against sums made by hand."""

from __future__ import annotations

import math

import numpy as np

from keras_bert.evaluation import cross_entropy, evaluate_pretraining, unigram_cross_entropy

MASK_ID = 4


class Oracle:
    """Gives the stored logits, whatever it's asked."""

    def __init__(self, **logits):
        self.logits = logits

    def predict_on_batch(self, inputs):
        return self.logits


# Row 0: [MASK] for 5, a kept 6, an empty slot. Row 1: 7 shown for 5, [MASK] for 6, [MASK] for 7.
BATCH = (
    {
        "token_ids": np.array([[2, MASK_ID, 6, 3], [7, MASK_ID, MASK_ID, 3]]),
        "mask_positions": np.array([[1, 2, 0], [0, 1, 2]]),
    },
    {"masked_lm": np.array([[5, 6, 0], [5, 6, 7]]), "next_sentence": np.array([0, 1])},
    {"masked_lm": np.array([[1, 1, 0], [1, 1, 1.0]]), "next_sentence": np.ones(2)},
)


def test_scores_by_kind():
    masked_lm = np.zeros((2, 3, 8))
    masked_lm[0, 0, 5] = masked_lm[0, 1, 6] = 2  # right; the others guess token 0
    next_sentence = np.array([[1.0, 0], [1, 0]])
    model = Oracle(masked_lm=masked_lm, next_sentence=next_sentence)
    scores = evaluate_pretraining(model, [BATCH], np.array([[0, 0], [0, 1]]), MASK_ID)

    sure, unsure = math.log(math.exp(2) + 7) - 2, math.log(8)
    assert math.isclose(scores["masked_lm_loss_mask"], (sure + 2 * unsure) / 3)
    assert math.isclose(scores["masked_lm_loss_kept"], sure)
    assert math.isclose(scores["masked_lm_loss_random"], unsure)
    assert math.isclose(scores["masked_lm_loss"], (2 * sure + 3 * unsure) / 5)
    assert scores["masked_lm_accuracy"] == 2 / 5
    assert scores["masked_lm_accuracy_mask"] == 1 / 3
    assert scores["next_sentence_accuracy"] == 1 / 2
    assert scores["next_sentence_accuracy_true"] == 1
    assert scores["next_sentence_accuracy_other_work"] == 0
    assert "next_sentence_accuracy_same_work" not in scores


def test_unigram_counts_only_the_masked_positions():
    counts = np.array([9, 0, 9, 9, 0, 3, 1, 0])  # specials (0 to 4) are never an answer
    # (3 + 1), (1 + 1) and (0 + 1) of 7; the [MASK] positions ask for 5, 6 and 7.
    expected = -sum(math.log(n / 7) for n in (4, 2, 1)) / 3
    assert math.isclose(unigram_cross_entropy(counts, [BATCH], MASK_ID, range(5)), expected)


def test_cross_entropy_of_large_logits():
    losses, right = cross_entropy(np.array([[1000.0, 0.0]]), np.array([1]))
    assert losses[0] == 1000
    assert not right[0]


def test_nothing_asked_gives_no_scores():
    inputs, labels, weights = BATCH
    empty = (inputs, labels, weights | {"masked_lm": np.zeros((2, 3))})
    model = Oracle(masked_lm=np.zeros((2, 3, 8)), next_sentence=np.zeros((2, 2)))
    scores = evaluate_pretraining(model, [empty], np.zeros((2, 2), int), MASK_ID)
    assert not [name for name in scores if name.startswith("masked_lm")]
    assert unigram_cross_entropy(np.ones(8), [empty], MASK_ID, range(5)) is None
