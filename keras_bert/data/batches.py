"""Records -> batches for `fit`: shuffled, padded and masked, on any backend."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_bert.data import masking, records
from keras_bert.errors import InputError

Batch = tuple[dict[str, tf.Tensor], dict[str, tf.Tensor], dict[str, tf.Tensor]]

# Masks are drawn for this many evaluation examples at a time, so that they don't depend on
# the batch size.
_EVALUATION_BLOCK = 64
# The examples were shuffled when they were written. Each pass shuffles them again, in blocks
# that fit in memory (128 tokens: some 30 MB).
_SHUFFLE_BLOCK = 65_536


def pretraining(
    folder: str | os.PathLike[str],
    batch_size: int,
    seed: int = 0,
    *,
    training: bool = True,
    mask_rate: float = 0.15,
) -> tf.data.Dataset:
    """Batches of (inputs, labels, weights) from a folder of `create_pretraining_data.py`.

    For training: endless, in a new order each pass, with new masks each batch. Both are
    functions of (seed, pass) and (seed, batch), so `pretraining(...).skip(n)` goes on exactly
    where a run of n batches ended. A batch larger than the data holds examples twice, under
    other masks. For evaluation: one pass in file order with masks that depend on the seed
    alone; the last batch may be smaller.

    Shapes: B `batch_size`, T the folder's `max_sequence_length`, M `num_masked(T, mask_rate)`.
    All integers are int32, weights float32.

        inputs:  token_ids, segment_ids, padding_mask (B, T), mask_positions (B, M)
        labels:  masked_lm (B, M); next_sentence (B,): 0 = B follows A, 1 = random
        weights: masked_lm (B, M), 0 where a slot is empty; next_sentence (B,), ones

    Args:
        folder: Shards and their manifest.
        batch_size: Examples in a batch, over all replicas.
        seed: For the order and the masks.
        training: See above.
        mask_rate: Share of the tokens that are predicted.

    Raises:
        InputError: the folder isn't complete, or holds no examples.
        tf.errors.InvalidArgumentError: in iterating, a record holds an id outside the vocabulary.
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1. Received: batch_size={batch_size}.")
    manifest = records.read_manifest(folder)
    num_examples = manifest["counts"]["examples"]
    if num_examples == 0:
        raise InputError(f"{folder} holds no examples: make the data from more text.")
    order_seed, mask_seed = tf.unstack(tf.random.split([seed, 0], 2))
    mask = _masker(manifest, mask_seed, mask_rate)

    if training:
        rows = _shuffled_forever(records.read_serialized(folder), order_seed)
        batches = _padded(rows, manifest, batch_size, drop_remainder=True)
        batches = batches.enumerate().map(mask, num_parallel_calls=tf.data.AUTOTUNE)
        cardinality = tf.data.INFINITE_CARDINALITY
    else:
        rows = records.read_serialized(folder)
        blocks = _padded(rows, manifest, _EVALUATION_BLOCK, drop_remainder=False)
        blocks = blocks.enumerate().map(mask, num_parallel_calls=tf.data.AUTOTUNE)
        batches = blocks.unbatch().batch(batch_size)
        cardinality = math.ceil(num_examples / batch_size)

    batches = batches.apply(tf.data.experimental.assert_cardinality(cardinality))
    options = tf.data.Options()
    options.deterministic = True
    # Hosts that train together each take their part of every batch, not of the files.
    policy = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policy.DATA
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)


def _shuffled_forever(rows: tf.data.Dataset, seed: tf.Tensor) -> tf.data.Dataset:
    # `Dataset.shuffle` would also depend on the global seed and on earlier iterations.
    def one_pass(index: tf.Tensor) -> tf.data.Dataset:
        pass_seed = tf.random.fold_in(seed, index)

        def shuffle(block_index: tf.Tensor, block: tf.Tensor) -> tf.Tensor:
            block_seed = tf.random.fold_in(pass_seed, block_index)
            order = tf.argsort(tf.random.stateless_uniform(tf.shape(block), block_seed))
            return tf.gather(block, order)

        return rows.batch(_SHUFFLE_BLOCK).enumerate().map(shuffle).unbatch()

    return tf.data.Dataset.counter().flat_map(one_pass)


def _padded(
    rows: tf.data.Dataset, manifest: dict[str, Any], batch_size: int, drop_remainder: bool
) -> tf.data.Dataset:
    """Parses serialized rows and batches them at the full length."""
    length = manifest["settings"]["max_sequence_length"]
    pad_id = manifest["tokenizer"]["pad_id"]
    num_tokens = manifest["tokenizer"]["vocabulary_size"]

    def parse(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        example = records.parse(serialized)
        # Compiled on an accelerator, a model couldn't say which id it was.
        for key, limit in (("token_ids", num_tokens), ("segment_ids", 2)):
            message = f"{key} of a record must be in [0, {limit}): make the data again"
            tf.debugging.assert_non_negative(example[key], message)
            tf.debugging.assert_less(example[key], limit, message)
        return {
            "token_ids": example["token_ids"],
            "segment_ids": example["segment_ids"],
            "padding_mask": tf.ones_like(example["token_ids"]),
            "next_sentence": example["next_sentence"],
        }

    return rows.map(parse, num_parallel_calls=tf.data.AUTOTUNE).padded_batch(
        batch_size,
        padded_shapes={
            "token_ids": [length],
            "segment_ids": [length],
            "padding_mask": [length],
            "next_sentence": [],
        },
        padding_values={
            "token_ids": pad_id,
            "segment_ids": 0,
            "padding_mask": 0,
            "next_sentence": 0,
        },
        drop_remainder=drop_remainder,
    )


def _masker(
    manifest: dict[str, Any], seed: tf.Tensor, mask_rate: float
) -> Callable[[tf.Tensor, dict[str, tf.Tensor]], Batch]:
    """Returns the function that turns (index, rows) into (inputs, labels, weights)."""
    tokenizer = manifest["tokenizer"]
    num_positions = masking.num_masked(manifest["settings"]["max_sequence_length"], mask_rate)

    def mask(index: tf.Tensor, rows: dict[str, tf.Tensor]) -> Batch:
        masked = masking.mask_tokens(
            rows["token_ids"],
            rows["padding_mask"],
            tf.random.fold_in(seed, index),
            mask_rate=mask_rate,
            num_positions=num_positions,
            mask_id=tokenizer["mask_id"],
            special_ids=tokenizer["special_ids"],
            vocabulary_size=tokenizer["vocabulary_size"],
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
            "next_sentence": tf.ones_like(rows["next_sentence"], tf.float32),
        }
        return inputs, labels, weights

    return mask
