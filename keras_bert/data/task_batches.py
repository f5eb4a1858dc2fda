"""Batches for fine-tuning out of sequences of any lengths, packed into rows or padded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_bert.data.fitting import (
    Shape,
    even_batches,
    fitted_rows,
    fixed_shape,
    uniform_order,
    with_empty,
)

LAYOUTS = ("padded", "packed", "one_shape", "fixed")
# A padded batch's length is rounded up to a multiple of this, so that shapes stay few.
LENGTH_STEP = 32

Batch = tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]
# Numbers of a batch's examples, those of each row among them, and the shape -> the arrays.
MakeBatch = Callable[[np.ndarray, list[list[int]], Shape], Batch]


def task_batches(
    make: MakeBatch,
    lengths: Sequence[int],
    batch_size: int,
    max_sequence_length: int,
    *,
    layout: str = "padded",
    row_multiple: int = 1,
    seed: int = 0,
    training: bool = True,
    has_class_axis: bool = False,
) -> tf.data.Dataset:
    """`tf.data` of (inputs, labels, weights), for `fit` on any backend.

    Layouts, each of which gives exactly the same update for the same examples:

    - "padded": a row for each example, of the length of the longest, rounded up to a multiple
      of 32.
    - "packed": rows that several examples share, as many and as long as takes least room.
    - "one_shape": the same, and all batches have one shape, for compilers that want to know it.
      The batches have nearly the same number of tokens each: see `fitting.even_order`.
    - "fixed": a row for each example in one shape, for tasks whose rows can't be shared.

    Args:
        make: Makes the arrays of a batch.
        lengths: Tokens of each example, one example at least.
        batch_size: Examples in a batch, over all replicas; the last may hold fewer.
        max_sequence_length: Tokens of the longest row.
        layout: See above.
        row_multiple: Rows of padding fill each batch up to a multiple of this, the number of
            parts (replicas times micro-batches) that it will be cut into.
        seed: For the order.
        training: Whether to deal the examples out anew each time the data set is iterated.
        has_class_axis: Whether the labels' last axis is that of classes, the same in all batches.
    """
    if layout not in LAYOUTS:
        raise ValueError(
            f"`layout` must be one of {', '.join(LAYOUTS)}. Received: layout={layout!r}."
        )
    sizes = np.asarray(lengths, np.int64)
    if layout == "one_shape":
        shape = fixed_shape(sizes, batch_size, max_sequence_length, row_multiple)
    elif layout == "fixed":
        num_rows = -(-batch_size // row_multiple) * row_multiple
        shape = Shape(num_rows, max_sequence_length, 1)
    epochs = itertools.count()

    def batches() -> Iterator[Batch]:
        rng = np.random.default_rng([seed, next(epochs)])
        if layout == "one_shape":
            for numbers, rows in even_batches(sizes, batch_size, shape, rng):
                yield make(numbers, rows, shape)
            return
        order = uniform_order(len(sizes), batch_size, rng)
        if not training:
            order = np.split(np.arange(len(sizes)), range(batch_size, len(sizes), batch_size))
        for numbers in order:
            if layout == "packed":
                fitted, rows = fitted_rows(sizes[numbers], max_sequence_length, row_multiple)
            elif layout == "fixed":
                fitted, rows = shape, with_empty([[i] for i in range(len(numbers))], num_rows)
            else:
                fitted, rows = padded_rows(sizes[numbers], max_sequence_length, row_multiple)
            yield make(numbers, rows, fitted)

    def spec(x: np.ndarray, free: int) -> tf.TensorSpec:
        is_fixed = layout in ("one_shape", "fixed")
        return tf.TensorSpec(x.shape if is_fixed else (None,) * free + x.shape[free:], x.dtype)

    inputs, labels, weights = next(batches())
    signature = (
        {name: spec(x, x.ndim) for name, x in inputs.items()},
        {name: spec(x, x.ndim - has_class_axis) for name, x in labels.items()},
        {name: spec(x, x.ndim) for name, x in weights.items()},
    )
    epochs = itertools.count()
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    count = -(-len(sizes) // batch_size)
    options = tf.data.Options()
    # Hosts that train together each take their part of every batch.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    return dataset.with_options(options).prefetch(2)


def padded_rows(
    lengths: np.ndarray, max_sequence_length: int, row_multiple: int
) -> tuple[Shape, list[list[int]]]:
    """A row for each sequence, and rows of padding up to a multiple."""
    length = min(-(-int(lengths.max()) // LENGTH_STEP) * LENGTH_STEP, max_sequence_length)
    rows = with_empty([[i] for i in range(len(lengths))], row_multiple)
    return Shape(len(rows), length, 1), rows
