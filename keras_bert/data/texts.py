"""Labelled texts: reading the tables people have, and batches of them."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.tokenizers import WordPiece

# A batch's length is rounded up to a multiple of this, so that shapes stay few.
LENGTH_STEP = 32


class LabelledText(NamedTuple):
    """One row of a table."""

    label: str
    text: str
    line: int


def read_labelled_texts(path: str | os.PathLike[str]) -> list[LabelledText]:
    """Reads a table of tab-separated columns.

    A first line that names the columns `label` and `text` says where they are. Without it a
    line is `label <tab> text`.

    Raises:
        InputError: a file that isn't there, isn't UTF-8 or holds no row; a line with too few
            columns or an empty label. The message names the line.
    """
    try:
        content = pathlib.Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        fault = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{path}, line {fault}: not UTF-8. Convert the file to UTF-8.") from error
    lines = [line.removesuffix("\r") for line in content.split("\n")]
    header = [name.strip().lower() for name in lines[0].split("\t")]
    named = {"label", "text"} <= set(header)
    if not named and {"label", "text"} & set(header):
        raise InputError(
            f"{path}, line 1: a line of column names must hold both `label` and `text`. "
            f"Received: {lines[0]!r}."
        )
    label_column, text_column = (header.index("label"), header.index("text")) if named else (0, 1)

    table: list[LabelledText] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or (named and number == 1):
            continue
        columns = line.split("\t")
        if len(columns) <= max(label_column, text_column):
            raise InputError(
                f"{path}, line {number}: expected a label, a tab and a text. Received: {line!r}."
            )
        row = LabelledText(columns[label_column].strip(), columns[text_column], number)
        if not row.label:
            raise InputError(f"{path}, line {number}: the label is empty. Received: {line!r}.")
        table.append(row)
    if not table:
        raise InputError(f"{path} holds no rows.")
    return table


def classification(
    rows: Sequence[LabelledText],
    tokenizer: WordPiece,
    labels: Sequence[str],
    batch_size: int,
    *,
    max_sequence_length: int = 128,
    seed: int = 0,
    training: bool = True,
) -> tf.data.Dataset:
    """Batches of (inputs, labels, weights) from labelled texts, for `fit` on any backend.

    Inputs `token_ids`, `segment_ids`, `padding_mask`, int32 (B, T), where T is the batch's
    longest text rounded up to a multiple of 32; labels and weights `{"label": (B,)}`, int32 and
    float32. For training the rows are shuffled anew each pass; the last batch may be smaller.

    Args:
        rows: From `read_labelled_texts`.
        tokenizer: Of the model.
        labels: Class names in the order of the logits.
        batch_size: Rows in a batch, over all replicas.
        max_sequence_length: Longest T; the ends of longer texts are cut off.
        seed: For the order.
        training: Whether to shuffle.

    Raises:
        InputError: a row's label isn't in `labels`.
    """
    indices = {label: i for i, label in enumerate(labels)}
    for row in rows:
        if row.label not in indices:
            known = ", ".join(labels[:10]) + (", ..." if len(labels) > 10 else "")
            raise InputError(
                f"line {row.line}: the label {row.label!r} doesn't occur in training ({known})."
            )
    token_ids = [
        tokenizer.encode(row.text, max_length=max_sequence_length).token_ids for row in rows
    ]
    dataset = tf.data.Dataset.from_tensor_slices(
        (
            tf.ragged.constant(token_ids, dtype=tf.int32, row_splits_dtype=tf.int32),
            np.array([indices[row.label] for row in rows], np.int32),
        )
    )
    if training:
        dataset = dataset.shuffle(len(rows), seed=seed)

    def pad(token_ids: tf.RaggedTensor, label: tf.Tensor) -> tuple[dict, dict, dict]:
        longest = tf.cast(token_ids.bounding_shape()[1], tf.int32)
        length = tf.minimum(-(-longest // LENGTH_STEP) * LENGTH_STEP, max_sequence_length)
        shape = tf.stack([tf.cast(token_ids.nrows(), tf.int32), length])
        inputs = {
            "token_ids": token_ids.to_tensor(tokenizer.pad_id, shape=shape),
            "segment_ids": tf.zeros(shape, tf.int32),
            "padding_mask": tf.ones_like(token_ids).to_tensor(0, shape=shape),
        }
        return inputs, {"label": label}, {"label": tf.ones_like(label, tf.float32)}

    return dataset.batch(batch_size).map(pad).prefetch(tf.data.AUTOTUNE)
