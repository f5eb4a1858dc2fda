"""How a batch is cut into micro-batches, and what is known of it beforehand."""

from __future__ import annotations

from typing import Any

import keras


def num_micro_batches(batch: Any, accumulate: int) -> int:
    """The least number of equal parts, at least `accumulate`, that the rows can be cut into.

    Parts of one static shape are what XLA can loop over. Their number doesn't change the
    update, so a last batch of 9 rows may go in 3 parts, not 2. Where a graph doesn't know the
    number of rows, it's `accumulate`.
    """
    rows = next(leaf.shape[0] for leaf in keras.tree.flatten(batch) if leaf is not None)
    if rows is None:
        return accumulate
    if rows <= accumulate:
        return max(rows, 1)
    return next(parts for parts in range(accumulate, rows + 1) if rows % parts == 0)


def batch_rows(x: Any, batch_size: int | None) -> int | None:
    """Rows of a batch that `fit` will take from `x`, where they're known before it begins."""
    if batch_size is not None:
        return batch_size
    spec = getattr(x, "element_spec", None)
    if spec is not None:
        return next((leaf.shape[0] for leaf in keras.tree.flatten(spec) if leaf is not None), None)
    return 32 if all(hasattr(leaf, "shape") for leaf in keras.tree.flatten(x)) else None
