"""Packing: several sequences share a row, so that little of a batch is padding.

A packed row gives the numbers of its sequences alone: `padding_mask` counts them, a token attends
to its own sequence, and positions start again with each. What belongs to a sequence as a whole,
such as its label, has a slot for each: (B, S).

```python
rows = best_fit([len(ids) for ids in token_ids], row_length=512)
inputs = pack(token_ids, segment_ids, rows, row_length=512, num_slots=8)
labels = {"label": per_slot(label, rows, num_slots=8)}
weights = {"label": per_slot(np.ones(len(label), "float32"), rows, num_slots=8)}
tasks.text_classifier(encoder, num_classes, packed=True)
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Batch = tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]


def best_fit(
    lengths: Sequence[int] | np.ndarray, row_length: int, max_sequences: int | None = None
) -> list[list[int]]:
    """Deals sequences out to rows, the longest first, each to the fullest row with room for it.

    Args:
        lengths: Tokens of each sequence, from 1 to `row_length`.
        row_length: Tokens of a row.
        max_sequences: The most that share a row; None: any number.

    Returns:
        The indices of each row's sequences: all of them, each once. The rows are in the order
        in which they were begun, so that those of long sequences come first.

    References:
        - [Johnson, 1973](https://dspace.mit.edu/handle/1721.1/57819), best fit decreasing.
        - [Krell et al., 2021](https://arxiv.org/abs/2107.02027), on packing BERT's sequences.
    """
    lengths = np.asarray(lengths, "int64").reshape(-1)
    if len(lengths) and not 1 <= lengths.min() <= lengths.max() <= row_length:
        wrong = lengths[(lengths < 1) | (lengths > row_length)][0]
        raise ValueError(
            f"`lengths` must be from 1 to row_length={row_length}. Received: a length of {wrong}."
        )
    rows: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(row_length + 1)]  # room -> rows
    rooms = 0  # bit r: a row has room for r more
    for index in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[index])
        enough = rooms >> length
        if enough:
            room = length + (enough & -enough).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, row = row_length, len(rows)
            rows.append([])
        rows[row].append(index)
        if room > length and len(rows[row]) != max_sequences:
            with_room[room - length].append(row)
            rooms |= 1 << (room - length)
    return rows


def pack(
    token_ids: Sequence[Sequence[int]],
    segment_ids: Sequence[Sequence[int]],
    rows: Sequence[Sequence[int]],
    *,
    row_length: int,
    num_slots: int,
    pad_id: int = 0,
) -> dict[str, np.ndarray]:
    """The inputs of a task built with `packed=True`.

    Shapes: B rows, T `row_length`, S `num_slots`.

    Args:
        token_ids: Ids of each sequence, [CLS] and [SEP] included, not padded.
        segment_ids: As many for each.
        rows: Indices of each row's sequences, from `best_fit`; an empty list is a row of padding.
        row_length: T.
        num_slots: S, at least as many as a row has sequences.
        pad_id: Id of [PAD].

    Returns:
        All int32: `token_ids`, `segment_ids` and `padding_mask` (B, T), the last being k at the
        tokens of the row's k-th sequence, from 1, and 0 at padding; `sequence_starts` (B, S),
        where each begins, -1 where a slot is empty.
    """
    lengths = np.array([len(ids) for ids in token_ids], "int64")
    flat_ids = np.concatenate([np.asarray(ids, "int32") for ids in token_ids])
    flat_segments = np.concatenate([np.asarray(ids, "int32") for ids in segment_ids])
    return pack_flat(
        flat_ids, flat_segments, lengths, rows, row_length=row_length, num_slots=num_slots,
        pad_id=pad_id,
    )  # fmt: skip


def pack_flat(
    token_ids: np.ndarray,
    segment_ids: np.ndarray,
    lengths: np.ndarray,
    rows: Sequence[Sequence[int]],
    *,
    row_length: int,
    num_slots: int,
    pad_id: int = 0,
) -> dict[str, np.ndarray]:
    """`pack` of sequences that lie one after another in `token_ids` and `segment_ids`."""
    starts = starts_in_rows(lengths, rows)
    number = 1 + starts_in_rows(np.ones_like(lengths), rows).astype("int32")  # k in its row
    return {
        "token_ids": joined(token_ids, lengths, rows, row_length, pad_id),
        "segment_ids": joined(segment_ids, lengths, rows, row_length),
        "padding_mask": joined(np.repeat(number, lengths), lengths, rows, row_length),
        "sequence_starts": per_slot(starts.astype("int32"), rows, num_slots, empty=-1),
    }


def best_fit_masked(
    lengths: np.ndarray,
    num_masked: np.ndarray,
    row_length: int,
    max_sequences: int,
    num_positions: int,
) -> list[list[int]]:
    """`best_fit` of examples with masked positions, of which a row has room for `num_positions`.

    A row whose positions are too many, since its examples' shares are rounded up, gives its
    shortest examples away. `num_masked` of one example must be at most `num_positions`.
    """
    rows, waiting = [], np.arange(len(lengths))
    while len(waiting):
        given_away: list[int] = []
        for row in best_fit(lengths[waiting], row_length, max_sequences):
            examples = waiting[row].tolist()
            while num_masked[examples].sum() > num_positions:
                given_away.append(examples.pop())
            rows.append(examples)
        waiting = np.array(given_away, "int64")
    return rows


def pack_masked(
    batch: Batch,
    rows: Sequence[Sequence[int]],
    *,
    row_length: int,
    num_slots: int,
    num_positions: int,
    pad_id: int = 0,
) -> Batch:
    """Packs a batch of `keras_bert.data.pretraining` whose tokens are masked already.

    So an example's masks are the same, and the losses over the batch too, as before packing.

    Args:
        batch: inputs `token_ids`, `segment_ids`, `padding_mask` (N, T), `mask_positions` (N, M);
            labels `masked_lm` (N, M), `next_sentence` (N,); weights of the labels' shapes.
        rows: Indices of each row's examples.
        row_length: Tokens of a row.
        num_slots: S, the most examples of a row.
        num_positions: The most masked positions of a row.
        pad_id: Id of [PAD].

    Returns:
        The same for B rows: inputs with `sequence_starts` (B, S), `mask_positions` within the
        row, `next_sentence` (B, S).
    """
    inputs, labels, weights = batch
    is_token = inputs["padding_mask"] > 0
    lengths = is_token.sum(1)
    tokens, segments = inputs["token_ids"][is_token], inputs["segment_ids"][is_token]
    packed = pack_flat(
        tokens, segments, lengths, rows, row_length=row_length, num_slots=num_slots, pad_id=pad_id
    )
    is_used = weights["masked_lm"] > 0
    counts = is_used.sum(1)
    positions = inputs["mask_positions"] + starts_in_rows(lengths, rows)[:, None].astype("int32")

    def masked(values: np.ndarray) -> np.ndarray:
        return joined(values[is_used], counts, rows, num_positions)

    return (
        packed | {"mask_positions": masked(positions)},
        {
            "masked_lm": masked(labels["masked_lm"]),
            "next_sentence": per_slot(labels["next_sentence"], rows, num_slots),
        },
        {
            "masked_lm": masked(weights["masked_lm"]),
            "next_sentence": per_slot(weights["next_sentence"], rows, num_slots),
        },
    )


def per_slot(
    values: Any, rows: Sequence[Sequence[int]], num_slots: int, empty: float = 0
) -> np.ndarray:
    """One value of each sequence, (N, ...), in its row's slots: (B, S, ...); `empty` elsewhere."""
    values = np.asarray(values)
    return joined(values, np.ones(len(values), "int64"), rows, num_slots, empty)


def starts_in_rows(counts: np.ndarray, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Elements before each sequence in its row: int (N,), of sequences with `counts` elements."""
    order, row_of = _in_order(rows)
    before = np.cumsum(counts[order]) - counts[order]
    first = np.searchsorted(row_of, row_of)  # in `order`, of the same row
    starts = np.zeros(len(counts), "int64")
    starts[order] = before - before[first]
    return starts


def joined(
    values: np.ndarray,
    counts: np.ndarray,
    rows: Sequence[Sequence[int]],
    width: int,
    empty: float = 0,
) -> np.ndarray:
    """Joins the elements of each row's sequences and fills the rest.

    Args:
        values: The elements of all N sequences, one sequence after another.
        counts: int (N,), how many elements each sequence has.
        rows: Indices of each row's sequences; a sequence in no row is left out.
        width: Elements of a row.
        empty: Put where a row has no more.

    Returns:
        (B, width, ...), of the dtype of `values`.
    """
    order, row_of = _in_order(rows)
    totals = np.bincount(row_of, counts[order], minlength=len(rows))
    if len(rows) and totals.max() > width:
        raise ValueError(
            f"`width` must hold the {totals.max():.0f} elements of row {totals.argmax()}. "
            f"Received: width={width}."
        )
    begins = np.full(len(counts), -1)
    begins[order] = row_of * width + starts_in_rows(counts, rows)[order]
    # An element's place is its sequence's, and its distance from the sequence's first.
    distance = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_used = np.repeat(begins >= 0, counts)
    places = (np.repeat(begins, counts) + distance)[is_used]
    result = np.full((len(rows) * width, *values.shape[1:]), empty, values.dtype)
    result[places] = values[is_used]
    return result.reshape(len(rows), width, *values.shape[1:])


def _in_order(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """The sequences row after row, and the row of each."""
    order = np.array([index for row in rows for index in row], "int64")
    return order, np.repeat(np.arange(len(rows)), [len(row) for row in rows])
