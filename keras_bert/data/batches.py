"""Records -> batches for `fit`: shuffled, padded, masked and packed, on any backend."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.data import google_records, records
from keras_bert.data.masking import (
    Masking,
    Replacements,
    continuations,
    mask_tokens,
    num_masked,
)
from keras_bert.data.packing import best_fit_masked, pack_masked
from keras_bert.errors import InputError
from keras_bert.unicode_table import CJK, load_table

Batch = tuple[dict[str, tf.Tensor], dict[str, tf.Tensor], dict[str, tf.Tensor]]

# Masks are drawn for this many evaluation examples at a time, so that they don't depend on
# the batch size.
_EVALUATION_BLOCK = 64
# The examples were shuffled when they were written. Each pass shuffles them again, in blocks
# that fit in memory (128 tokens: some 30 MB).
_SHUFFLE_BLOCK = 65_536
# Rows are filled with examples out of this many: the last rows of a window are all that is left
# half empty.
_PACKING_WINDOW = 4096
_EXAMPLES_LOOKED_AT = 256  # to learn the language


def pretraining(
    folder: str | os.PathLike[str],
    batch_size: int,
    seed: int = 0,
    *,
    training: bool = True,
    mask_rate: float = 0.15,
    masking: Masking = "token",
    replacements: Replacements = "ordinary",
    row_length: int | None = None,
    start: int = 0,
    vocabulary_size: int | None = None,
) -> tf.data.Dataset:
    """Batches of (inputs, labels, weights) from a folder of `create_pretraining_data.py`.

    For training: endless, in a new order each pass, with new masks each batch. Both are
    functions of (seed, pass) and (seed, batch), so `pretraining(..., start=n)` goes on exactly
    where a run of n batches ended. A batch larger than the data holds examples twice, under
    other masks. For evaluation: one pass in file order with masks that depend on the seed
    alone; the last batch may be smaller.

    With `row_length`, a batch is `batch_size` rows, each filled with several examples (best fit,
    out of 4,096 examples at a time), for `tasks.pretraining(encoder, packed=True)`. As many
    tokens of each example are masked as there would be alone, and in evaluation the same ones.

    Google's own records and NVIDIA's are read too: a folder or pattern of TFRecord files in
    place of `folder`. Those are masked already.

    Shapes: B `batch_size`, T the folder's `max_sequence_length` or `row_length`, M masked
    positions, `num_masked(T, mask_rate)` or one more in packed rows, S `num_slots`. All integers
    are int32, weights float32.

        inputs:  token_ids, segment_ids, padding_mask (B, T), mask_positions (B, M);
                 packed: sequence_starts (B, S), -1 where a slot is empty
        labels:  masked_lm (B, M); next_sentence (B,) or (B, S): 0 = B follows A, 1 = random
        weights: masked_lm (B, M), 0 where a slot is empty; next_sentence (B,) or (B, S), ones,
                 0 where a slot is empty and for examples that are no pairs

    Args:
        folder: Shards and their manifest.
        batch_size: Examples, or packed rows, in a batch, over all replicas.
        seed: For the order and the masks.
        training: See above.
        mask_rate: Share of the tokens that are predicted.
        masking: What is hidden together, see `mask_tokens`.
        replacements: What random tokens are drawn from, see there.
        row_length: Tokens of a packed row; at least those of the longest example. None: each
            example has a row of its own.
        start: Batches to begin after, as `.skip(start)` would. In training without `row_length`
            they aren't made; packed rows are, since nothing else tells how many a window gives.
        vocabulary_size: Of the model, for Google's records, which don't say.

    Raises:
        InputError: the folder isn't complete, or holds no examples; an example is longer than
            `row_length`; records that are masked already can't have `masking` or `replacements`.
        tf.errors.InvalidArgumentError: in iterating, a record holds an id outside the vocabulary.
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1. Received: batch_size={batch_size}.")
    if start < 0:
        raise ValueError(f"`start` must be at least 0. Received: start={start}.")
    order_seed, mask_seed, row_seed = tf.unstack(tf.random.split([seed, 0], 3))
    if google_records.are_here(folder):
        if (masking, replacements) != ("token", "ordinary"):
            raise InputError(
                f"{folder}: its records are masked already, so masking={masking!r} and "
                f"replacements={replacements!r} would do nothing: leave them out."
            )
        source = _read_google(folder, vocabulary_size)
    else:
        source = _read(folder, mask_seed, mask_rate, masking=masking, replacements=replacements)
    if row_length is not None and row_length < source.length:
        raise InputError(
            f"{folder}: its examples have up to {source.length} tokens, and row_length is "
            f"{row_length}: give at least {source.length}."
        )

    first = start if training and row_length is None else 0  # of those that are made
    rows = _shuffled_forever(source, order_seed, first * batch_size) if training else source.rows
    size = batch_size if row_length is None else _PACKING_WINDOW
    if training:
        batches = source.masked(rows, size, True, first)
    else:
        batches = source.masked(rows, _EVALUATION_BLOCK, False, 0)
        batches = batches.unbatch().batch(size)
    if row_length is not None:
        pack = _packer(source, row_length, mask_rate, row_seed if training else None)
        packed = batches.enumerate().map(pack, num_parallel_calls=tf.data.AUTOTUNE)
        batches = packed.unbatch().batch(batch_size, drop_remainder=training)

    if training:
        batches = batches.apply(
            tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        )
    elif row_length is None and source.num_examples is not None:
        cardinality = math.ceil(source.num_examples / batch_size)
        batches = batches.apply(tf.data.experimental.assert_cardinality(cardinality))
    options = tf.data.Options()
    options.deterministic = True
    # Hosts that train together each take their part of every batch, not of the files.
    policy = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policy.DATA
    return batches.skip(start - first).with_options(options).prefetch(tf.data.AUTOTUNE)


def filled(batches: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Fills the last batch of an evaluation up with rows of padding, whose weights are 0.

    Losses and metrics stay what they are, and all batches have one shape: what a TPU's compiler
    wants to know beforehand, and what several devices can cut evenly.
    """

    def fill(name: str, x: tf.Tensor) -> tf.Tensor:
        missing = batch_size - tf.shape(x)[0]
        empty = -1 if name == "sequence_starts" else 0
        rows = tf.pad(x, [[0, missing]] + [[0, 0]] * (len(x.shape) - 1), constant_values=empty)
        return tf.ensure_shape(rows, (batch_size, *x.shape[1:]))

    return batches.map(
        lambda *batch: tuple({name: fill(name, x) for name, x in part.items()} for part in batch)
    )


class _Source(NamedTuple):
    """Where examples come from."""

    rows: tf.data.Dataset  # serialized
    # (rows, size of a batch, drop_remainder, number of the first)
    masked: Callable[[tf.data.Dataset, int, bool, int], tf.data.Dataset]
    length: int  # T
    num_positions: int  # M
    pad_id: int
    num_examples: int | None  # None: unknown


def _read(
    folder: str | os.PathLike[str], seed: tf.Tensor, mask_rate: float, **choices: Any
) -> _Source:
    """Our own records, and how they are masked."""
    manifest = records.read_manifest(folder)
    num_examples = manifest["counts"]["examples"]
    length = manifest["settings"]["max_sequence_length"]
    if num_examples == 0:
        raise InputError(f"{folder} holds no examples: make the data from more text.")
    if choices["masking"] != "token":
        choices["is_continuation"] = continuations(_read_vocabulary(folder))
    if choices["masking"] == "whole_word" and not manifest["settings"].get("words"):
        _check_words(folder)
    mask = _masker(manifest, seed, mask_rate, **choices)

    def masked(rows: tf.data.Dataset, size: int, drop: bool, first: int) -> tf.data.Dataset:
        padded = _padded(rows, manifest, size, drop)
        return padded.enumerate(first).map(mask, num_parallel_calls=tf.data.AUTOTUNE)

    return _Source(
        rows=records.read_serialized(folder),
        masked=masked,
        length=length,
        num_positions=num_masked(length, mask_rate),
        pad_id=manifest["tokenizer"]["pad_id"],
        num_examples=num_examples,
    )


def _read_google(folder: str | os.PathLike[str], vocabulary_size: int | None) -> _Source:
    """Google's records, which are masked and padded."""
    sizes = google_records.read_sizes(folder)

    def masked(rows: tf.data.Dataset, size: int, drop: bool, first: int) -> tf.data.Dataset:
        return rows.batch(size, drop).map(
            lambda serialized: google_records.parse(
                serialized, **sizes, vocabulary_size=vocabulary_size
            ),
            num_parallel_calls=tf.data.AUTOTUNE,
        )

    return _Source(
        rows=google_records.read_serialized(folder),
        masked=masked,
        length=sizes["max_sequence_length"],
        num_positions=sizes["num_positions"],
        pad_id=0,
        num_examples=None,
    )


def _shuffled_forever(source: _Source, seed: tf.Tensor, start: int) -> tf.data.Dataset:
    """The serialized examples after the first `start`, pass after pass."""

    # `Dataset.shuffle` would also depend on the global seed and on earlier iterations.
    def one_pass(index: tf.Tensor) -> tf.data.Dataset:
        pass_seed = tf.random.fold_in(seed, index)

        def shuffle(block_index: tf.Tensor, block: tf.Tensor) -> tf.Tensor:
            block_seed = tf.random.fold_in(pass_seed, block_index)
            order = tf.argsort(tf.random.stateless_uniform(tf.shape(block), block_seed))
            return tf.gather(block, order)

        return source.rows.batch(_SHUFFLE_BLOCK).enumerate().map(shuffle).unbatch()

    passes, rest = divmod(start, source.num_examples) if source.num_examples else (0, start)
    return tf.data.Dataset.counter(passes).flat_map(one_pass).skip(rest)


def _padded(
    rows: tf.data.Dataset, manifest: dict[str, Any], batch_size: int, drop_remainder: bool
) -> tf.data.Dataset:
    """Batches serialized rows, and parses them to the full length."""
    length = manifest["settings"]["max_sequence_length"]
    pad_id = manifest["tokenizer"]["pad_id"]
    num_tokens = manifest["tokenizer"]["vocabulary_size"]
    scalar, of_tokens = tf.io.FixedLenFeature([], tf.int64), tf.io.RaggedFeature(tf.int64)
    by_token = dict.fromkeys(("token_ids", "segment_ids", "continues"), of_tokens)

    # A batch at once: ten times as fast as `records.parse` of each.
    def parse(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(serialized, by_token | {"next_sentence": scalar})
        # Compiled on an accelerator, a model couldn't say which id it was.
        for key, limit in (("token_ids", num_tokens), ("segment_ids", 2)):
            message = f"{key} of a record must be in [0, {limit}): make the data again"
            tf.debugging.assert_non_negative(parsed[key].values, message)
            tf.debugging.assert_less(parsed[key].values, tf.constant(limit, tf.int64), message)
        lengths = tf.cast(parsed["token_ids"].row_lengths(), tf.int32)
        message = f"a record has more than {length} tokens: make the data again"
        tf.debugging.assert_less_equal(lengths, length, message)

        def padded(key: str, value: int = 0) -> tf.Tensor:
            shape = (serialized.shape[0], length)
            return tf.cast(parsed[key].to_tensor(value, shape=shape), tf.int32)

        return {
            "token_ids": padded("token_ids", pad_id),
            "segment_ids": padded("segment_ids"),
            "continues": padded("continues"),
            "padding_mask": tf.sequence_mask(lengths, length, tf.int32),
            "next_sentence": tf.cast(parsed["next_sentence"], tf.int32),
        }

    batches = rows.batch(batch_size, drop_remainder)
    return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE)


def _masker(
    manifest: dict[str, Any], seed: tf.Tensor, mask_rate: float, **choices: Any
) -> Callable[[tf.Tensor, dict[str, tf.Tensor]], Batch]:
    """Returns the function that turns (index, rows) into (inputs, labels, weights)."""
    tokenizer = manifest["tokenizer"]
    num_positions = num_masked(manifest["settings"]["max_sequence_length"], mask_rate)
    # Full sentences are no pairs: their label says nothing.
    are_pairs = manifest["settings"].get("pairs") != "full_sentences"

    def mask(index: tf.Tensor, rows: dict[str, tf.Tensor]) -> Batch:
        masked = mask_tokens(
            rows["token_ids"],
            rows["padding_mask"],
            tf.random.fold_in(seed, index),
            mask_rate=mask_rate,
            num_positions=num_positions,
            mask_id=tokenizer["mask_id"],
            special_ids=tokenizer["special_ids"],
            vocabulary_size=tokenizer["vocabulary_size"],
            continues=rows["continues"],
            **choices,
        )
        inputs = {
            "token_ids": masked["token_ids"],
            "segment_ids": rows["segment_ids"],
            "padding_mask": rows["padding_mask"],
            "mask_positions": masked["mask_positions"],
        }
        labels = {"masked_lm": masked["labels"], "next_sentence": rows["next_sentence"]}
        weights = {
            "masked_lm": masked["weights"],
            "next_sentence": tf.fill(tf.shape(rows["next_sentence"]), float(are_pairs)),
        }
        return inputs, labels, weights

    return mask


def _read_vocabulary(folder: str | os.PathLike[str]) -> list[str]:
    with tf.io.gfile.GFile(tf.io.gfile.join(os.fspath(folder), "vocab.txt"), "rb") as file:
        lines = file.read().decode("utf-8").split("\n")
    return [line.removesuffix("\r") for line in lines]


def _check_words(folder: str | os.PathLike[str]) -> None:
    """Warns where whole words are asked for in Chinese, and nobody said where they end."""
    vocabulary = _read_vocabulary(folder)
    is_ideograph = load_table().properties & CJK > 0
    counts = [0, 0]  # other tokens, ideographs
    for example in records.read_examples(folder).take(_EXAMPLES_LOOKED_AT).as_numpy_iterator():
        if example["continues"].any():
            return
        for token_id in example["token_ids"]:
            token = vocabulary[token_id]
            counts[len(token) == 1 and bool(is_ideograph[ord(token)])] += 1
    if counts[1] > counts[0]:
        warnings.warn(
            f"{folder} holds Chinese text without word boundaries: masking='whole_word' hides "
            "single characters, as masking='token' does. Make the data again with words "
            "that a segmenter has found (--words).",
            stacklevel=4,
        )


def num_slots(length: int, row_length: int) -> int:
    """S: the most examples that share a row of `row_length`, of examples up to `length` tokens.

    More would fill rows by less than 0.1 % better.
    """
    return 4 + 2 * (row_length // length)


def num_packed_positions(row_length: int, mask_rate: float = 0.15) -> int:
    """M: the masked positions that a packed row has room for.

    One more than its share, for the rounding of its examples' shares.
    """
    return num_masked(row_length, mask_rate) + 1


def _packer(
    source: _Source, row_length: int, mask_rate: float, seed: tf.Tensor | None
) -> Callable[[tf.Tensor, Batch], Batch]:
    """Returns the function from (index, masked examples) to packed rows, shuffled by the seed."""
    slots = num_slots(source.length, row_length)
    positions = max(num_packed_positions(row_length, mask_rate), source.num_positions)
    row_seed = None if seed is None else seed.numpy().astype("uint32").tolist()
    token, position, slot = (
        tf.TensorSpec((None, width), tf.int32) for width in (row_length, positions, slots)
    )
    by_token = dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), token)
    asked = {"masked_lm": position, "next_sentence": slot}
    weighed = {name: tf.TensorSpec(each.shape, tf.float32) for name, each in asked.items()}
    spec = (by_token | {"mask_positions": position, "sequence_starts": slot}, asked, weighed)

    def pack(index: tf.Tensor, batch: Batch) -> Batch:
        def in_numpy(index: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
            examples = tf.nest.pack_sequence_as(batch, arrays)
            lengths = (examples[0]["padding_mask"] > 0).sum(1)
            counts = (examples[2]["masked_lm"] > 0).sum(1)
            rows = best_fit_masked(lengths, counts, row_length, slots, positions)
            if row_seed is not None:
                order = np.random.default_rng([*row_seed, int(index)]).permutation(len(rows))
                rows = [rows[i] for i in order]
            packed = pack_masked(
                examples, rows, row_length=row_length, num_slots=slots, num_positions=positions,
                pad_id=source.pad_id,
            )  # fmt: skip
            return tf.nest.flatten(packed)

        dtypes = [part.dtype for part in tf.nest.flatten(spec)]
        arrays = tf.numpy_function(
            in_numpy, [index, *tf.nest.flatten(batch)], dtypes, stateful=False
        )
        shaped = map(tf.ensure_shape, arrays, [part.shape for part in tf.nest.flatten(spec)])
        return tf.nest.pack_sequence_as(spec, list(shaped))

    return pack
