"""Labelled texts and pairs: batches of them, with next to no padding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert import long_texts
from keras_bert.data.fitting import Shape
from keras_bert.data.packing import pack, per_slot
from keras_bert.data.tables import LabelledText, check_labels, names_of, read_labelled_texts
from keras_bert.data.task_batches import Batch, task_batches
from keras_bert.tokenizers import WordPiece


class Examples(NamedTuple):
    """What a model is trained on, N sequences with their labels and weights.

    `labels` are int32 (N,), classes; float32 (N, C), 1 for each label that holds; or float32
    (N, 1), numbers. `weights` are float32 (N,).
    """

    sequences: list[long_texts.Sequence]
    labels: np.ndarray
    weights: np.ndarray


def make_examples(
    rows: Sequence[LabelledText],
    tokenizer: WordPiece,
    labels: Sequence[str],
    *,
    max_sequence_length: int = 128,
    truncate: str = "head",
    stride: int = 0,
    balanced: bool = False,
    scale: tuple[float, float] = (0.0, 1.0),
) -> Examples:
    """Texts and pairs as the model reads them; with a stride, each window is an example.

    Args:
        rows: From `read_labelled_texts`, with labels.
        tokenizer: Of the model.
        labels: Class names in the order of the logits; none in a regression.
        max_sequence_length: The longest sequence.
        truncate: As for `long_texts.encode_text`; the longer text of a pair is cut at its end.
        stride: The same; not for pairs.
        balanced: Whether an example weighs inversely to its class's share, on average 1.
        scale: What a number is standardised by: mean and standard deviation.

    Raises:
        InputError: a row's label isn't in `labels`.
    """
    if labels:
        check_labels("", rows, labels)
    several = any(isinstance(row.label, tuple) for row in rows)
    sequences, owners = [], []
    for number, row in enumerate(rows):
        if row.pair is None:
            own = long_texts.encode_text(tokenizer, row.text, max_sequence_length, truncate, stride)
        else:
            own = [long_texts.encode_pair(tokenizer, row.text, row.pair, max_sequence_length)]
        sequences += own
        owners += [number] * len(own)
    weights = np.ones(len(rows), np.float32)
    if not labels:
        mean, std = scale
        values = (np.array([[row.label] for row in rows], np.float32) - mean) / std
    elif several:
        holds = [[name in names_of(row.label) for name in labels] for row in rows]
        values = np.array(holds, np.float32)
    else:
        indices = {name: i for i, name in enumerate(labels)}
        values = np.array([indices[row.label] for row in rows], np.int32)
        if balanced:
            counts = Counter(row.label for row in rows)
            shares = [len(rows) / len(counts) / counts[row.label] for row in rows]
            weights = np.array(shares, np.float32)
    return Examples(sequences, values[owners].astype(values.dtype), weights[owners])


def batches(
    examples: Examples,
    batch_size: int,
    *,
    max_sequence_length: int,
    pad_id: int = 0,
    layout: str = "padded",
    row_multiple: int = 1,
    seed: int = 0,
    training: bool = True,
) -> tf.data.Dataset:
    """`tf.data` of (inputs, labels, weights), for `fit` on any backend: see `task_batches`.

    Labels of "padded" batches are (B,), (B, C) or (B, 1). The other layouts are for a task built
    with `packed=True`: labels are (B, S), (B, S, C) or (B, S, 1).

    Args:
        examples: From `make_examples`.
        batch_size: Examples of a batch, over all replicas; the last may hold fewer.
        max_sequence_length: Tokens of the longest row.
        pad_id: Id of [PAD].
        layout: "padded", "packed" or "one_shape".
        row_multiple: As for `task_batches`.
        seed: For the order.
        training: Whether to deal the examples out anew each time the data set is iterated.
    """

    def make(numbers: np.ndarray, rows: list[list[int]], shape: Shape) -> Batch:
        inputs = pack(
            [examples.sequences[i].token_ids for i in numbers],
            [examples.sequences[i].segment_ids for i in numbers],
            rows,
            row_length=shape.row_length,
            num_slots=shape.num_slots,
            pad_id=pad_id,
        )
        labels = per_slot(examples.labels[numbers], rows, shape.num_slots)
        weights = per_slot(examples.weights[numbers], rows, shape.num_slots)
        if layout == "padded":
            del inputs["sequence_starts"]
            labels, weights = labels[:, 0], weights[:, 0]
        return inputs, {"label": labels}, {"label": weights}

    return task_batches(
        make,
        [len(sequence.token_ids) for sequence in examples.sequences],
        batch_size,
        max_sequence_length,
        layout=layout,
        row_multiple=row_multiple,
        seed=seed,
        training=training,
        has_class_axis=examples.labels.ndim == 2,
    )


def classification(
    rows: Sequence[LabelledText],
    tokenizer: WordPiece,
    labels: Sequence[str],
    batch_size: int,
    *,
    max_sequence_length: int = 128,
    layout: str = "padded",
    seed: int = 0,
    training: bool = True,
) -> tf.data.Dataset:
    """Batches of (inputs, labels, weights) from labelled texts or pairs, for `fit`.

    All integers are int32, weights float32. For training the rows are shuffled anew each pass; the
    last batch may be smaller.

    Args:
        rows: From `read_labelled_texts`.
        tokenizer: Of the model.
        labels: Class names in the order of the logits; none in a regression.
        batch_size: Rows in a batch, over all replicas.
        max_sequence_length: Tokens of a text; the ends of longer texts are cut off.
        layout: As for `batches`: "padded"; "packed" or "one_shape" for `packed=True` models.
        seed: For the order.
        training: Whether to shuffle.

    Raises:
        InputError: a row's label isn't in `labels`.
    """
    examples = make_examples(rows, tokenizer, labels, max_sequence_length=max_sequence_length)
    return batches(
        examples,
        batch_size,
        max_sequence_length=max_sequence_length,
        pad_id=tokenizer.pad_id,
        layout=layout,
        seed=seed,
        training=training,
    )


__all__ = ["LabelledText", "batches", "classification", "make_examples", "read_labelled_texts"]
