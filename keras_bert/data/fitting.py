"""Which examples share a batch and which share a row, so that next to nothing is padding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from keras_bert.data.packing import best_fit

# Row lengths are multiples of this: a whole number of vectors, and not too many shapes.
LENGTH_STEP = 8
DRAWS = 4  # orders that a fixed shape must hold
REDRAWS = 1000  # of an order whose batches don't fit; next to none needs a second


class Shape(NamedTuple):
    """Rows of a batch, and tokens and sequences that a row has room for."""

    num_rows: int
    row_length: int
    num_slots: int


def fitted_rows(
    lengths: np.ndarray, max_sequence_length: int, row_multiple: int = 1
) -> tuple[Shape, list[list[int]]]:
    """The shape of least area for these sequences, and each row's indices.

    Among equals it's the one with the shortest rows, in which attention costs least.

    Args:
        lengths: Tokens of each sequence of a batch.
        max_sequence_length: Of the longest row.
        row_multiple: Of the number of rows: replicas times micro-batches. Rows of padding, which
            are empty lists, fill up.
    """
    found = []
    for row_length in row_lengths(int(lengths.max()), max_sequence_length):
        rows = with_empty(best_fit(lengths, row_length), row_multiple)
        found.append((len(rows) * row_length, row_length, rows))
    _, row_length, rows = min(found, key=lambda each: each[:2])
    most = max(map(len, rows))
    return Shape(len(rows), row_length, -(-most // 4) * 4), rows


def with_empty(rows: list[list[int]], multiple: int) -> list[list[int]]:
    """The rows, and empty ones up to a multiple."""
    return rows + [[] for _ in range(-len(rows) % multiple)]


def row_lengths(longest: int, max_sequence_length: int) -> list[int]:
    """Multiples of `LENGTH_STEP` from the longest sequence's on, and the last one allowed."""
    first = -(-longest // LENGTH_STEP) * LENGTH_STEP
    return [*range(first, max_sequence_length, LENGTH_STEP), max_sequence_length]


def uniform_order(count: int, batch_size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Batches of exactly `batch_size` examples in random order; the last may be smaller."""
    order = rng.permutation(count)
    return [order[first : first + batch_size] for first in range(0, count, batch_size)]


def even_order(lengths: np.ndarray, batch_size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """`uniform_order` in batches of nearly the same number of tokens.

    The examples are sorted by length and cut into `batch_size` strata, and a batch has one of
    each. The longest stratum is dealt out at random; of each one after it, longer examples go to
    batches that have fewer tokens so far, equals at random. Every example is as likely to be in a
    batch as any other. The last batch, if it's smaller, is drawn from all of them.
    """
    num_whole, rest = divmod(len(lengths), batch_size)
    order = rng.permutation(len(lengths))
    last, order = order[:rest], order[rest:]
    strata = order[np.argsort(-lengths[order], kind="stable")].reshape(batch_size, num_whole)
    totals = np.zeros(num_whole, np.int64)
    columns = []
    for stratum in strata:
        draw = rng.permutation(num_whole)
        column = np.empty_like(stratum)
        column[draw[np.argsort(totals[draw], kind="stable")]] = stratum
        totals += lengths[column]
        columns.append(column)
    batches = list(np.stack(columns, axis=1)) if num_whole else []
    return [*batches, last] if rest else batches


def fixed_shape(
    lengths: np.ndarray, batch_size: int, max_sequence_length: int, row_multiple: int = 1
) -> Shape:
    """The shape of least area that holds the batches of `even_order`, whatever is drawn."""
    rng = np.random.default_rng(0)
    batches = [lengths[b] for _ in range(DRAWS) for b in even_order(lengths, batch_size, rng)]
    most = max(int(batch.sum()) for batch in batches)
    candidates = sorted(
        (num_rows * row_length, row_length, num_rows)
        for row_length in row_lengths(int(lengths.max()), max_sequence_length)
        for num_rows in range(row_multiple, 2 * batch_size + row_multiple, row_multiple)
        if num_rows * row_length >= most
    )
    for _, row_length, num_rows in candidates:
        shape = Shape(num_rows, row_length, min(batch_size, -(-2 * batch_size // num_rows)))
        if all(rows_in(batch, shape) is not None for batch in batches):
            return shape
    raise AssertionError("a row for each example holds any batch")


def rows_in(lengths: np.ndarray, shape: Shape) -> list[list[int]] | None:
    """Each row's indices in a batch of a fixed shape; None where it doesn't fit."""
    rows = best_fit(lengths, shape.row_length, shape.num_slots)
    if len(rows) > shape.num_rows:
        return None
    return rows + [[] for _ in range(shape.num_rows - len(rows))]


def even_batches(
    lengths: np.ndarray, batch_size: int, shape: Shape, rng: np.random.Generator
) -> list[tuple[np.ndarray, list[list[int]]]]:
    """An epoch's batches of one shape: the numbers of their examples, and their rows."""
    for _ in range(REDRAWS):
        batches = even_order(lengths, batch_size, rng)
        rows = [rows_in(lengths[batch], shape) for batch in batches]
        fitting = [each for each in rows if each is not None]
        if len(fitting) == len(batches):
            return list(zip(batches, fitting, strict=True))
    raise AssertionError("`shape` must be that of `fixed_shape`")
