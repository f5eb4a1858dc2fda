"""Labelled texts and pairs: batches of them, with next to no padding."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert import long_texts
from keras_bert.data.fitting import (
    Shape,
    even_batches,
    fitted_rows,
    fixed_shape,
    uniform_order,
)
from keras_bert.data.packing import pack, per_slot
from keras_bert.data.tables import LabelledText, check_labels, names_of, read_labelled_texts
from keras_bert.tokenizers import WordPiece

# A padded batch's length is rounded up to a multiple of this, so that shapes stay few.
LENGTH_STEP = 32
LAYOUTS = ("padded", "packed", "one_shape")

Batch = tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]


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
    """`tf.data` of (inputs, labels, weights), for `fit` on any backend.

    Layouts, each of which gives the same update for the same examples:
    - "padded": a row for each example, of the length of the longest, rounded up to a multiple
      of 32. For any task; labels are (B,), (B, C) or (B, 1).
    - "packed": rows that several examples share, as many and as long as takes least room. For a
      task built with `packed=True`; labels are (B, S), (B, S, C) or (B, S, 1), B rows.
    - "one_shape": the same, and all batches have one shape, for compilers that want to know it.
      The batches have nearly the same number of tokens each: see `fitting.even_order`.

    Args:
        examples: From `make_examples`.
        batch_size: Examples of a batch, over all replicas; the last may hold fewer.
        max_sequence_length: Tokens of the longest row.
        pad_id: Id of [PAD].
        layout: See above.
        row_multiple: Rows of padding fill a batch up to a multiple of this, the number of parts
            (replicas times micro-batches) that it's cut into; not where it's padded.
        seed: For the order.
        training: Whether to deal the examples out anew each time the data set is iterated.
    """
    if layout not in LAYOUTS:
        known = ", ".join(LAYOUTS)
        raise ValueError(f"`layout` must be one of {known}. Received: layout={layout!r}.")
    lengths = np.array([len(sequence.token_ids) for sequence in examples.sequences])
    one_shape = layout == "one_shape"
    if one_shape:
        shape = fixed_shape(lengths, batch_size, max_sequence_length, row_multiple)
    epochs = itertools.count()

    def epoch() -> Iterator[Batch]:
        rng = np.random.default_rng([seed, next(epochs)])
        if one_shape:
            for numbers, rows in even_batches(lengths, batch_size, shape, rng):
                yield packed(examples, numbers, rows, shape, pad_id)
            return
        order = uniform_order(len(lengths), batch_size, rng)
        if not training:
            order = np.split(np.arange(len(lengths)), range(batch_size, len(lengths), batch_size))
        for numbers in order:
            if layout == "packed":
                fitted, rows = fitted_rows(lengths[numbers], max_sequence_length, row_multiple)
                yield packed(examples, numbers, rows, fitted, pad_id)
            else:
                longest = -(-int(lengths[numbers].max()) // LENGTH_STEP) * LENGTH_STEP
                yield padded(examples, numbers, min(longest, max_sequence_length), pad_id)

    count = -(-len(lengths) // batch_size)
    return dataset_of(epoch, count, one_shape, 1 if layout == "padded" else 2)


def dataset_of(
    epoch: Callable[[], Iterator[Batch]], count: int, is_fixed: bool, label_axes: int = 1
) -> tf.data.Dataset:
    """`tf.data` of what a generator makes anew for each epoch.

    Args:
        epoch: Makes an epoch's batches.
        count: Their number.
        is_fixed: Whether all batches have the first one's shape. Else the axes of the inputs are
            free, and the first ones of labels and weights.
        label_axes: How many of these are free.
    """

    def spec(axes: int, x: np.ndarray) -> Any:
        free = min(axes, x.ndim)
        shape = x.shape if is_fixed else (None,) * free + x.shape[free:]
        return tf.TensorSpec(shape, x.dtype)

    signature = tuple(
        {name: spec(axes, x) for name, x in part.items()}
        for axes, part in zip((3, label_axes, label_axes), next(epoch()), strict=True)
    )
    dataset = tf.data.Dataset.from_generator(epoch, output_signature=signature)
    options = tf.data.Options()
    # Hosts that train together each take their part of every batch.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    return dataset.with_options(options).prefetch(2)


def packed(
    examples: Examples, numbers: np.ndarray, rows: list[list[int]], shape: Shape, pad_id: int
) -> Batch:
    """The arrays of a batch whose examples share rows."""
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
    return inputs, {"label": labels}, {"label": weights}


def padded(examples: Examples, numbers: np.ndarray, length: int, pad_id: int) -> Batch:
    """The arrays of a batch with a row for each example."""
    inputs = pack(
        [examples.sequences[i].token_ids for i in numbers],
        [examples.sequences[i].segment_ids for i in numbers],
        [[i] for i in range(len(numbers))],
        row_length=length,
        num_slots=1,
        pad_id=pad_id,
    )
    del inputs["sequence_starts"]
    return inputs, {"label": examples.labels[numbers]}, {"label": examples.weights[numbers]}


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
