"""What the model of an export reads: rows of tokens, computed in chunks of similar lengths.

A request holds texts of all lengths, and a text may make many rows. Padded to the longest they
would waste half of the work, and a long text would take any amount of memory: so rows are sorted
by length and computed a few at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from keras_bert.checkpoints import Preset
from keras_bert.tokenizers import WordPiece
from keras_bert.wordpiece_graph import joined_parts

# Tokens of a chunk, padding included; a longer row is a chunk of its own.
CHUNK_TOKENS = 1024
# Rows are padded to a multiple of it: a kernel is prepared anew for every shape.
LENGTH_MULTIPLE = 8


class Rows(NamedTuple):
    """R sequences as the model reads them, [CLS] and [SEP] included: int32 (R, None) each."""

    token_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor


def make_rows(tokenizer: WordPiece, *parts: tf.RaggedTensor) -> Rows:
    """[CLS] part [SEP], or [CLS] part [SEP] part [SEP]: int32 (R, None) each."""
    return Rows(*joined_parts(parts, tokenizer.cls_id, tokenizer.sep_id))


def slices(
    ids: tf.RaggedTensor, owners: tf.Tensor, starts: tf.Tensor, stops: tf.Tensor
) -> tf.RaggedTensor:
    """N parts of rows, int (N,) each: of row `owners` what stands in [`starts`, `stops`)."""
    base = tf.gather(tf.cast(ids.row_starts(), tf.int32), owners)
    places = tf.ragged.range(base + starts, base + stops, row_splits_dtype=tf.int64)
    return tf.gather(ids.flat_values, places)


class Output(NamedTuple):
    """An output of a chunk: for each row `counts` of its elements, (N, ...), in the rows' order.

    `counts` is int32 (R,); None: one element a row.
    """

    spec: tf.TensorSpec
    counts: tf.Tensor | None = None


# From int32 (r, t) inputs of the model, and bool (r, t), true at real tokens, to flat outputs.
Compute = Callable[[dict[str, tf.Tensor], tf.Tensor], dict[str, tf.Tensor]]


def computed(
    preset: Preset, rows: Rows, compute: Compute, outputs: dict[str, Output]
) -> dict[str, tf.Tensor]:
    """What a model makes of rows, a chunk of them at a time.

    Args:
        preset: Whose model it is.
        rows: R rows.
        compute: Called with a padded chunk.
        outputs: What it gives.

    Returns:
        The outputs of all rows, in the rows' order.
    """
    lengths = tf.cast(rows.token_ids.row_lengths(), tf.int32)

    def of_chunk(chosen: tf.Tensor, longest: tf.Tensor) -> dict[str, tf.Tensor]:
        longest = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        longest = tf.minimum(longest, preset.config.max_sequence_length)
        shape = tf.stack([tf.size(chosen), longest])
        token_ids, segment_ids = (tf.gather(x, chosen) for x in rows)
        real = tf.sequence_mask(tf.gather(lengths, chosen), longest)
        inputs = {
            "token_ids": token_ids.to_tensor(preset.tokenizer.pad_id, shape=shape),
            "segment_ids": segment_ids.to_tensor(shape=shape),
            "padding_mask": tf.cast(real, tf.int32),
        }
        return compute(inputs, real)

    return in_chunks(lengths, CHUNK_TOKENS, of_chunk, outputs)


def in_chunks(
    lengths: tf.Tensor,
    size: int,
    compute: Callable[[tf.Tensor, tf.Tensor], dict[str, tf.Tensor]],
    outputs: dict[str, Output],
) -> dict[str, tf.Tensor]:
    """Works on rows a few at a time, the longest first.

    Args:
        lengths: int32 (R,).
        size: Of a chunk, in elements of its rows, padding to the longest included.
        compute: Called with the numbers of a chunk's rows, int32 (r,), and the longest's length.
        outputs: What it gives.
    """
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    sorted_lengths = tf.gather(lengths, order)
    num_rows = tf.size(order)
    arrays = [
        tf.TensorArray(
            spec.dtype, 0, dynamic_size=True, infer_shape=False, element_shape=spec.shape
        )
        for spec, _ in outputs.values()
    ]

    def step(number: tf.Tensor, first: tf.Tensor, *arrays: tf.TensorArray) -> tuple:
        longest = tf.maximum(1, sorted_lengths[first])
        stop = tf.minimum(num_rows, first + tf.maximum(1, size // longest))
        found = compute(order[first:stop], longest)
        written = [x.write(number, found[name]) for x, name in zip(arrays, outputs, strict=True)]
        return number + 1, stop, *written

    _, _, *arrays = tf.while_loop(
        lambda number, first, *_: first < num_rows, step, (0, 0, *arrays), parallel_iterations=1
    )
    slots = tf.argsort(order)
    return {
        name: _in_order(array.concat(), output.counts, order, slots)
        for (name, output), array in zip(outputs.items(), arrays, strict=True)
    }


def _in_order(
    values: tf.Tensor, counts: tf.Tensor | None, order: tf.Tensor, slots: tf.Tensor
) -> tf.Tensor:
    """Puts the elements of sorted rows where the rows were; row `slots[i]` of them is row i."""
    if counts is None:
        return tf.gather(values, slots)
    starts = tf.gather(tf.cumsum(tf.gather(counts, order), exclusive=True), slots)
    return tf.gather(values, tf.ragged.range(starts, starts + counts).flat_values)


class Windows(NamedTuple):
    """W windows on the tokens of B texts, int32 (W,) each: the text's number, and [start, stop)."""

    owners: tf.Tensor
    starts: tf.Tensor
    stops: tf.Tensor


def windows(lengths: tf.Tensor, sizes: tf.Tensor | int, stride: tf.Tensor | int) -> Windows:
    """As `keras_bert.windows.windows`, of many texts.

    Args:
        lengths: int32 (B,), the tokens of each.
        sizes: Of the texts' windows, int32 (B,) or one for all.
        stride: Tokens from one to the next; their size where that's less. As `sizes`.
    """
    sizes = tf.broadcast_to(sizes, tf.shape(lengths))
    stride = tf.minimum(stride, sizes)
    counts = tf.where(lengths > 0, -(-tf.maximum(0, lengths - sizes) // stride) + 1, 0)
    owners = tf.repeat(tf.range(tf.size(lengths)), counts)
    number = tf.ragged.range(counts).flat_values
    starts = number * tf.gather(stride, owners)
    stops = tf.minimum(starts + tf.gather(sizes, owners), tf.gather(lengths, owners))
    return Windows(owners, starts, stops)


def best_windows(found: Windows, lengths: tf.Tensor) -> tf.Tensor:
    """Where each token has the most context, as `keras_bert.windows.windows` has it.

    Args:
        found: W windows.
        lengths: int32 (B,), the tokens of each text.

    Returns:
        int32 (N,), for each token of all texts its place among those of all windows, laid out
        one after the other.
    """
    sizes = found.stops - found.starts
    base = tf.cumsum(lengths, exclusive=True)
    tokens = tf.ragged.range(found.starts, found.stops)
    inside = tokens.flat_values
    window = tf.cast(tokens.value_rowids(), tf.int32)
    token = inside + tf.gather(tf.gather(base, found.owners), window)
    start, stop = tf.gather(found.starts, window), tf.gather(found.stops, window)
    context = tf.cast(tf.minimum(inside - start, stop - 1 - inside), tf.float64)
    context += 0.01 * tf.cast(tf.gather(sizes, window), tf.float64)
    count = tf.reduce_sum(lengths)
    most = tf.math.unsorted_segment_max(context, token, count)
    place = tf.range(tf.size(token))
    chosen = tf.where(context == tf.gather(most, token), place, tf.size(token))
    return tf.math.unsorted_segment_min(chosen, token, count)
