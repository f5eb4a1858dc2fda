"""Indices without a row: an error where their values are known, NaN where they can't be."""

from __future__ import annotations

from typing import Any

from keras import ops


def has_row(indices: Any, num_rows: int, name: str) -> Any:
    """True where an index is in [0, `num_rows`): bool, of the indices' shape.

    Args:
        indices: int, any shape.
        num_rows: Rows of the table.
        name: Of the table, for the message.

    Raises:
        ValueError: one isn't, and the values are known: the call isn't being traced.
    """
    found = ops.logical_and(indices >= 0, indices < num_rows)
    try:
        all_found = bool(ops.all(found))
    except (TypeError, RuntimeError):  # raised where a backend traces, and there are no values
        return found
    if not all_found:
        values = ops.convert_to_numpy(indices)
        wrong = values[(values < 0) | (values >= num_rows)][0]
        raise ValueError(
            f"Indices into {name} must be in [0, {num_rows}), its rows. Received: {wrong}."
        )
    return found


def nan_where_not(found: Any, rows: Any) -> Any:
    """Rows (..., D), unchanged where `found` (...) is true and NaN elsewhere."""
    return ops.where(found[..., None], rows, float("nan"))
