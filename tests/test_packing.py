"""Rows filled with several sequences, and the tasks that read them."""

from __future__ import annotations

import numpy as np
import pytest

from keras_bert.data.packing import best_fit, best_fit_masked, pack, per_slot


def test_best_fit_by_hand():
    assert best_fit([3, 5, 2, 8, 4], 8) == [[3], [1, 0], [4, 2]]
    assert best_fit([], 8) == []
    assert best_fit([1] * 5, 8, max_sequences=2) == [[0, 1], [2, 3], [4]]
    assert best_fit([8], 8) == [[0]]
    # 4 goes where 4 is left, not where 5 is.
    assert best_fit([6, 7, 4, 5], 11) == [[1, 2], [0, 3]]


def test_best_fit_holds_everything_once_and_fills():
    rng = np.random.default_rng(0)
    lengths = np.where(rng.random(4096) < 0.8, 128, rng.integers(5, 128, 4096))
    for row_length in (128, 512):
        rows = best_fit(lengths, row_length)
        assert sorted(i for row in rows for i in row) == list(range(4096))
        totals = [lengths[row].sum() for row in rows]
        assert max(totals) <= row_length
        assert lengths.sum() / (row_length * len(rows)) > 0.99
    rows = best_fit(lengths, 512, max_sequences=5)
    assert max(map(len, rows)) <= 5 and sum(map(len, rows)) == 4096


def test_best_fit_refuses_what_has_no_room():
    with pytest.raises(ValueError, match=r"row_length=8\. Received: a length of 9"):
        best_fit([3, 9], 8)
    with pytest.raises(ValueError, match="a length of 0"):
        best_fit([0], 8)


def test_rows_have_room_for_their_masked_positions():
    lengths, counts = np.array([5, 5, 5, 5, 5, 4]), np.array([1, 1, 1, 1, 1, 1])
    assert best_fit_masked(lengths, counts, 15, 4, 3) == [[0, 1, 2], [3, 4, 5]]
    assert best_fit_masked(lengths, counts, 15, 4, 2) == [[0, 1], [3, 4], [2, 5]]
    assert sorted(best_fit_masked(lengths, counts, 15, 4, 1)) == [[i] for i in range(6)]
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 129, 2000)
    counts = np.maximum(np.round(lengths * 0.15), 1).astype(int)
    rows = best_fit_masked(lengths, counts, 128, 6, 20)
    assert sorted(i for row in rows for i in row) == list(range(2000))
    assert all(counts[row].sum() <= 20 and lengths[row].sum() <= 128 for row in rows)
    assert lengths.sum() / (128 * len(rows)) > 0.97


def test_packed_arrays():
    token_ids, segment_ids = (
        [[2, 5, 3], [2, 6, 7, 8, 3], [2, 3]],
        [[0] * 3, [0, 0, 0, 1, 1], [0, 0]],
    )
    packed = pack(token_ids, segment_ids, [[1, 0], [2], []], row_length=8, num_slots=3, pad_id=9)
    assert {name: (x.dtype.name, x.tolist()) for name, x in packed.items()} == {
        "token_ids": ("int32", [[2, 6, 7, 8, 3, 2, 5, 3], [2, 3] + [9] * 6, [9] * 8]),
        "segment_ids": ("int32", [[0, 0, 0, 1, 1, 0, 0, 0], [0] * 8, [0] * 8]),
        "padding_mask": ("int32", [[1, 1, 1, 1, 1, 2, 2, 2], [1, 1] + [0] * 6, [0] * 8]),
        "sequence_starts": ("int32", [[0, 5, -1], [0, -1, -1], [-1, -1, -1]]),
    }
    labels = per_slot(np.array([[7, 1], [8, 2], [9, 3]]), [[1, 0], [2], []], 2)
    assert labels.tolist() == [[[8, 2], [7, 1]], [[9, 3], [0, 0]], [[0, 0], [0, 0]]]
    assert per_slot(np.array([0.5, 1.5]), [[1], [0]], 2, empty=-1).tolist() == [
        [1.5, -1],
        [0.5, -1],
    ]
    # A sequence that's in no row is in none.
    some = pack(token_ids, segment_ids, [[2], [1]], row_length=8, num_slots=1)
    assert some["token_ids"].tolist() == [[2, 3] + [0] * 6, [2, 6, 7, 8, 3, 0, 0, 0]]


def test_a_row_that_is_too_full_is_named():
    with pytest.raises(ValueError, match=r"the 6 elements of row 1\. Received: width=5"):
        pack(
            [[1], [2] * 3, [3] * 3],
            [[0], [0] * 3, [0] * 3],
            [[0], [1, 2]],
            row_length=5,
            num_slots=2,
        )
    with pytest.raises(ValueError, match=r"the 2 elements of row 0\. Received: width=1"):
        pack([[1], [2]], [[0], [0]], [[0, 1]], row_length=5, num_slots=1)
