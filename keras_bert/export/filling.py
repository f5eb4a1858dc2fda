"""Exports of masked language models: the likeliest tokens for each [MASK]."""

from __future__ import annotations

import tensorflow as tf

from keras_bert.checkpoints import Preset
from keras_bert.export.rows import Output, computed, make_rows
from keras_bert.export.signatures import Signature, Tensors, checked, id_signatures, text_signature

TOP_K = 5


def signatures(preset: Preset) -> dict[str, Signature]:
    """`ids` and `text`: what `inference.fill_mask` says, padded with "" and 0 to M masks."""
    tokenizer = preset.tokenizer
    longest = preset.max_sequence_length
    top_k = min(TOP_K, tokenizer.vocabulary_size)

    def at_masks(inputs: Tensors, real: tf.Tensor) -> Tensors:
        """The best tokens and their scores, (m, K), of all masks in order."""
        places = tf.where((inputs["token_ids"] == tokenizer.mask_id) & real)
        positions = tf.RaggedTensor.from_value_rowids(
            tf.cast(places[:, 1], tf.int32), places[:, 0], tf.shape(real, tf.int64)[0]
        )
        # The head wants a position at least.
        columns = tf.maximum(positions.bounding_shape()[1], 1)
        shape = tf.stack([positions.nrows(), columns])
        inputs = inputs | {"mask_positions": positions.to_tensor(shape=shape)}
        logits = tf.cast(preset.model(inputs, training=False)["masked_lm"], tf.float32)
        slots = tf.sequence_mask(positions.row_lengths(), columns)
        logits = tf.boolean_mask(logits, slots)[:, : tokenizer.vocabulary_size]
        scores, tokens = tf.math.top_k(tf.nn.softmax(logits), top_k)
        return {"tokens": tokens, "scores": scores}

    def filled(found: Tensors, counts: tf.Tensor) -> Tensors:
        tokens = tf.gather(tf.constant(tokenizer.vocabulary), found["tokens"])
        rows = tf.RaggedTensor.from_row_lengths(tokens, counts)
        return {
            "tokens": rows.to_tensor("", shape=[None, None, top_k]),
            "scores": rows.with_flat_values(found["scores"]).to_tensor(shape=[None, None, top_k]),
            "count": counts,
        }

    def num_masks(ids: tf.RaggedTensor) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(ids == tokenizer.mask_id, tf.int32), axis=-1)

    def from_text(text: tf.Tensor) -> Tensors:
        ids = tokenizer.to_tf(text, core_ops=True, special_tokens=True)
        counts, read = num_masks(ids), ids[:, : longest - 2]
        counts = checked(
            counts,
            counts == num_masks(read),
            f"Every [MASK] must be among the first {longest} tokens. Masks of the texts:",
            counts,
        )
        spec = (None, top_k)
        outputs = {
            "tokens": Output(tf.TensorSpec(spec, tf.int32), counts),
            "scores": Output(tf.TensorSpec(spec, tf.float32), counts),
        }
        rows = make_rows(tokenizer, read)
        return filled(computed(preset, rows, at_masks, outputs), counts)

    def from_ids(inputs: Tensors, real: tf.Tensor) -> Tensors:
        is_mask = (inputs["token_ids"] == tokenizer.mask_id) & real
        return filled(at_masks(inputs, real), tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=-1))

    return id_signatures(preset, from_ids) | text_signature("text", from_text)
