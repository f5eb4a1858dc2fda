"""Exports of classifiers of texts and of pairs, and of regressions."""

from __future__ import annotations

import tensorflow as tf

from keras_bert.answers import class_names
from keras_bert.checkpoints import Preset
from keras_bert.export.rows import Output, Rows, computed, make_rows, slices
from keras_bert.export.signatures import Signature, Tensors, id_signatures, text_signature
from keras_bert.tokenizers import kept_lengths


def signatures(preset: Preset) -> dict[str, Signature]:
    """`ids` and `text`, or `pair`: what `inference.classify` says, `label`, `score`, `scores`."""
    settings, tokenizer = preset.settings, preset.tokenizer
    num_classes = preset.model.output["label"].shape[-1]
    names = class_names(preset.labels, num_classes)
    longest = preset.max_sequence_length

    def logits(inputs: Tensors, real: tf.Tensor) -> Tensors:
        return {"logits": tf.cast(preset.model(inputs, training=False)["label"], tf.float32)}

    def of_rows(rows: Rows) -> tf.Tensor:
        output = Output(tf.TensorSpec((None, num_classes), tf.float32))
        return computed(preset, rows, logits, {"logits": output})["logits"]

    def decoded(logits: tf.Tensor) -> Tensors:
        if settings.get("multi_label"):
            return labels_that_hold(logits, names, settings.get("threshold", 0.5))
        return {"score": logits[:, 0]} if num_classes == 1 else likeliest(logits, names)

    def from_text(text: tf.Tensor) -> Tensors:
        ids = tokenizer.to_tf(text, core_ops=True)
        parts, owners = read_parts(
            ids, longest - 2, settings.get("truncate", "head"), settings.get("window_stride", 0)
        )
        found = of_rows(make_rows(tokenizer, parts))
        return decoded(tf.math.unsorted_segment_mean(found, owners, tf.size(text)))

    def from_pair(text: tf.Tensor, pair: tf.Tensor) -> Tensors:
        first, second = (tokenizer.to_tf(each, core_ops=True) for each in (text, pair))
        found = of_rows(make_rows(tokenizer, *cut_pair(first, second, longest - 3)))
        if settings.get("symmetric"):
            turned = of_rows(make_rows(tokenizer, *cut_pair(second, first, longest - 3)))
            found = (found + turned) / 2
        return decoded(found)

    made = id_signatures(preset, lambda *inputs: decoded(logits(*inputs)["logits"]))
    if settings.get("pair"):
        return made | text_signature("pair", from_pair)
    return made | text_signature("text", from_text)


def likeliest(logits: tf.Tensor, names: tuple[str, ...]) -> Tensors:
    """One class of all: float (B, C)."""
    scores = tf.nn.softmax(logits)
    return {
        "label": tf.gather(tf.constant(names), tf.argmax(scores, axis=-1)),
        "score": tf.reduce_max(scores, axis=-1),
        "scores": scores,
    }


def labels_that_hold(logits: tf.Tensor, names: tuple[str, ...], threshold: float) -> Tensors:
    """Independent classes, float (B, C): `labels` (B, K) are the `count` that hold, then ""."""
    scores = tf.sigmoid(tf.cast(logits, tf.float64))  # as Python has them, to meet the threshold
    holds = scores >= threshold
    count = tf.reduce_sum(tf.cast(holds, tf.int32), axis=-1)
    found = tf.gather(tf.constant(names), tf.where(holds)[:, 1])
    return {
        "label": tf.gather(tf.constant(names), tf.argmax(scores, axis=-1)),
        "score": tf.cast(tf.reduce_max(scores, axis=-1), tf.float32),
        "scores": tf.cast(scores, tf.float32),
        "labels": tf.RaggedTensor.from_row_lengths(found, count).to_tensor(""),
        "count": count,
    }


def read_parts(
    ids: tf.RaggedTensor, room: int, truncate: str, stride: int
) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """The parts of texts that are read, as `long_texts.encode_text` has it, and whose they are."""
    lengths = tf.cast(ids.row_lengths(), tf.int32)
    texts = tf.range(tf.size(lengths))
    if stride:
        step = min(stride, room)
        counts = tf.where(lengths > room, -(-(lengths - room) // step) + 1, 1)
        owners = tf.repeat(texts, counts)
        own = tf.gather(lengths, owners)
        last = tf.maximum(own - room, 0)
        starts = tf.minimum(tf.ragged.range(counts).flat_values * step, last)
        return slices(ids, owners, starts, tf.minimum(starts + room, own)), owners
    head = {"head": room, "tail": 0, "head+tail": room // 4}[truncate]
    stops = tf.minimum(lengths, head)
    parts = slices(ids, texts, tf.zeros_like(lengths), stops)
    if truncate != "head":
        tails = tf.maximum(stops, lengths - (room - head))
        parts = tf.concat([parts, slices(ids, texts, tails, lengths)], axis=1)
    return parts, texts


def cut_pair(first: tf.RaggedTensor, second: tf.RaggedTensor, room: int) -> list[tf.RaggedTensor]:
    """Cuts the longer of two texts from its end until both fit, as `WordPiece.encode` does."""
    lengths = [tf.cast(ids.row_lengths(), tf.int32) for ids in (first, second)]
    texts = tf.range(tf.size(lengths[0]))
    return [
        slices(ids, texts, tf.zeros_like(stops), stops)
        for ids, stops in zip(
            (first, second), kept_lengths(lengths, room, tf.minimum, tf.maximum), strict=True
        )
    ]
