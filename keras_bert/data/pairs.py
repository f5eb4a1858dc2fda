"""Pairs of texts, and texts with several choices: reading them, and batches of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bert.data.fitting import Shape
from keras_bert.data.packing import pack
from keras_bert.data.table_files import read_records
from keras_bert.data.tables import LABELS, NAMES, LabelledText
from keras_bert.data.task_batches import Batch, task_batches
from keras_bert.data.texts import classification
from keras_bert.errors import InputError
from keras_bert.long_texts import encode_pair
from keras_bert.tokenizers import WordPiece

TEXTS = ("context", "question", "premise", "sent1", "startphrase", "text", "sentence")
CHOICE = re.compile(r"(?:ending|choice|option|answer)_?\d+")
LISTS = ("choices", "endings", "options")


def pairs(
    rows: Sequence[LabelledText],
    tokenizer: WordPiece,
    labels: Sequence[str],
    batch_size: int,
    **options: Any,
) -> tf.data.Dataset:
    """`classification` of pairs.

    Raises:
        InputError: a row's label isn't in `labels`.
        ValueError: a row has no second text.
    """
    for row in rows:
        if row.pair is None:
            raise ValueError(f"`rows` must have a `pair` each. Received: line {row.line}.")
    return classification(rows, tokenizer, labels, batch_size, **options)


def read_choices(path: str | os.PathLike[str], *, needs_labels: bool = True) -> list[LabelledText]:
    """Reads texts with K choices each, from a table in the formats of `read_labelled_texts`.

    Columns: a text (`context`, `question`, `premise`, `sent1` and the like); the choices
    (`ending0`, `choice1`, `option_2` and the like in their order, or in JSON lines a list
    `choices`, `endings` or `options`), all as many; `label`, the right one's number from 0. A
    column `sent2`, as in SWAG, is the beginning of every choice.

    Returns:
        Rows whose `pair` is the tuple of choices, and whose label is the right one's number, a
        string as other classes' names are.

    Raises:
        InputError: as `read_labelled_texts`; or a label is no choice's number.
    """
    header, records = read_records(path)
    known = [name.lower() for name in header]
    if len(set(known)) < len(known):
        twice = next(name for name in known if known.count(name) > 1)
        raise InputError(f"{path}, line 1: the column {twice!r} is there twice: rename one.")
    text = next((name for name in TEXTS if name in known), None)
    listed = next((name for name in LISTS if name in known), None)
    numbered = [name for name in known if CHOICE.fullmatch(name)]
    label = next((name for name in LABELS if name in known), None)
    if text is None or (listed is None and len(numbered) < 2) or (needs_labels and label is None):
        raise InputError(
            f"{path}, line 1: expected columns such as context, choice0, choice1, ..., label. "
            f"Received: {', '.join(header):.80}."
        )
    rows: list[LabelledText] = []
    for line, values in records:
        if not isinstance(values, dict):
            if [cell.strip().lower() for cell in values] == known:
                continue  # the names
            if len(values) != len(known):
                raise InputError(
                    f"{path}, line {line}: {len(values)} columns, and {len(known)} in the first."
                )
        cells = values if isinstance(values, dict) else dict(zip(known, values, strict=True))
        cells = {name.lower(): cell for name, cell in cells.items()}
        found = cells.get(listed, []) if listed else [cells.get(name) for name in numbered]
        if not isinstance(found, list):
            raise InputError(
                f"{path}, line {line}: {listed} must be a list of texts. Received: {found!r:.80}."
            )
        if not all(isinstance(x, str) for x in [cells.get(text), cells.get("sent2", ""), *found]):
            raise InputError(f"{path}, line {line}: expected texts. Received: {values!r:.80}.")
        start = f"{cells['sent2']} " if "sent2" in cells else ""
        choices = tuple(f"{start}{each}" for each in found)
        if len(choices) < 2:
            raise InputError(f"{path}, line {line}: give at least two choices. Received: {found}.")
        if rows and len(choices) != len(rows[0].pair):
            raise InputError(
                f"{path}, line {line}: {len(choices)} choices, and {len(rows[0].pair)} in line "
                f"{rows[0].line}."
            )
        name = next((str(cells[each]) for each in NAMES if each in cells), str(len(rows)))
        right = _right(path, line, cells.get(label), len(choices), needs_labels)
        rows.append(LabelledText(right, cells[text], line, choices, name))
    if not rows:
        raise InputError(f"{path} holds no rows.")
    return rows


def check_choices(path: Any, rows: Sequence[LabelledText], count: int) -> None:
    """Raises InputError for the first row with another number of choices than in training."""
    for row in rows:
        if len(row.pair) != count:
            raise InputError(
                f"{path}, line {row.line}: {len(row.pair)} choices, and {count} in the training "
                "file: give all files as many."
            )


def _right(path: Any, line: int, cell: Any, count: int, needed: bool) -> str | None:
    text = "" if cell is None else str(cell).strip()
    if not needed and text in ("", "-1"):
        return None
    is_number = text.isdecimal() and len(text) < 10 and not isinstance(cell, bool)
    if not is_number or int(text) >= count:
        raise InputError(
            f"{path}, line {line}: the label must be the number of a choice, from 0 to "
            f"{count - 1}. Received: {cell!r:.80}."
        )
    return str(int(text))


def multiple_choice(
    rows: Sequence[LabelledText],
    tokenizer: WordPiece,
    batch_size: int,
    *,
    max_sequence_length: int = 128,
    layout: str = "padded",
    row_multiple: int = 1,
    seed: int = 0,
) -> tf.data.Dataset:
    """Training batches of (inputs, labels, weights) for `tasks.multiple_choice`.

    Inputs are int32 (B, K, T), labels int32 (B,), weights float32 (B,), 0 for rows that fill up.

    Args:
        rows: From `read_choices`, with labels.
        tokenizer: Of the model.
        batch_size: Rows of a batch, over all replicas; the last may hold fewer.
        max_sequence_length: The most tokens of a text and a choice.
        layout: As for `task_batches`: "padded", or "fixed" for batches of one shape.
        row_multiple: The same.
        seed: For the order.
    """
    encoded = [
        [encode_pair(tokenizer, row.text, each, max_sequence_length) for each in row.pair]
        for row in rows
    ]
    right = np.array([int(row.label) for row in rows], np.int32)

    def make(numbers: np.ndarray, places: list[list[int]], shape: Shape) -> Batch:
        # The first example again where a row is empty: one of padding alone could give NaN.
        chosen = numbers[[place[0] if place else 0 for place in places]]
        sequences = [each for i in chosen for each in encoded[i]]
        inputs = pack(
            [sequence.token_ids for sequence in sequences],
            [sequence.segment_ids for sequence in sequences],
            [[i] for i in range(len(sequences))],
            row_length=shape.row_length,
            num_slots=1,
            pad_id=tokenizer.pad_id,
        )
        del inputs["sequence_starts"]
        inputs = {name: x.reshape(len(chosen), -1, shape.row_length) for name, x in inputs.items()}
        weights = np.array([bool(place) for place in places], np.float32)
        return inputs, {"label": right[chosen]}, {"label": weights}

    return task_batches(
        make,
        [max(len(each.token_ids) for each in own) for own in encoded],
        batch_size,
        max_sequence_length,
        layout=layout,
        row_multiple=row_multiple,
        seed=seed,
    )
