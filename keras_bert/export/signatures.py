"""What the signatures of all tasks share: ids in, and checks in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from keras_bert.checkpoints import Preset

# The longest text that's read, so that one can't hold a service up for long.
TEXT_BYTES = 1_000_000
# What `load_saved_model` must know beside the model.
DESCRIPTION = "assets.extra/keras_bert.json"
IDS = ("token_ids", "segment_ids", "padding_mask")
# The signatures that take text, of which an export has one, and their inputs.
TEXT_FORMS = {
    "text": ("text",),
    "pair": ("text", "pair"),
    "question_context": ("question", "context"),
}

Tensors = dict[str, tf.Tensor]


class Signature(NamedTuple):
    """A function from named tensors to named tensors, and what it takes."""

    function: Callable[..., Tensors]
    inputs: dict[str, tf.TensorSpec]


def text_signature(form: str, function: Callable[..., Tensors]) -> dict[str, Signature]:
    """One of `TEXT_FORMS`, whose texts, string (B,), are checked for their size."""
    names = TEXT_FORMS[form]

    def of_texts(**texts: tf.Tensor) -> Tensors:
        first, *others = (checked_text(texts[name], name) for name in names)
        for name, other in zip(names[1:], others, strict=True):
            first = checked(
                first,
                tf.size(first) == tf.size(other),
                f"`{name}` must be as many as `{names[0]}`. Received:",
                tf.size(other),
            )
        return function(first, *others)

    inputs = {name: tf.TensorSpec((None,), tf.string, name) for name in names}
    return {form: Signature(of_texts, inputs)}


def id_signatures(preset: Preset, function: Callable[[Tensors, tf.Tensor], Tensors]) -> dict:
    """`ids` and `ids_by_length`; `function` gets the model's inputs and bool (B, T), the real ones.

    TensorFlow Serving is reported to fill requests that it joins with each tensor's first value,
    which makes a mask of ones: a length survives that.
    """
    pad_id = preset.tokenizer.pad_id

    def from_ids(**inputs: tf.Tensor) -> Tensors:
        inputs = checked_ids(preset, inputs)
        return function(inputs, inputs["padding_mask"] > 0)

    def from_lengths(token_ids: tf.Tensor, segment_ids: tf.Tensor, length: tf.Tensor) -> Tensors:
        rows, longest = tf.unstack(tf.shape(token_ids))
        message = "`length` must be as many as the rows of `token_ids`. Received:"
        length = checked(length, tf.size(length) == rows, message, tf.size(length))
        length = checked(
            length,
            (length >= 1) & (length <= longest),
            "`length` must be from 1 to the columns of `token_ids`. Received:",
            length,
        )
        segment_ids = same_shape(segment_ids, token_ids, "segment_ids")
        real = tf.sequence_mask(length, longest)
        inputs = {
            "token_ids": tf.where(real, token_ids, pad_id),
            "segment_ids": tf.where(real, segment_ids, 0),
            "padding_mask": tf.cast(real, tf.int32),
        }
        return function(checked_ids(preset, inputs), real)

    def spec(name: str, *shape: None) -> tf.TensorSpec:
        return tf.TensorSpec(shape, tf.int32, name)

    by_length = {name: spec(name, None, None) for name in IDS[:2]} | {
        "length": spec("length", None)
    }
    return {
        "ids": Signature(from_ids, {name: spec(name, None, None) for name in IDS}),
        "ids_by_length": Signature(from_lengths, by_length),
    }


def checked_text(texts: tf.Tensor, name: str) -> tf.Tensor:
    """The same strings, of which none is too long."""
    sizes = tf.strings.length(texts)
    message = f"`{name}` must be texts of at most {TEXT_BYTES:,} bytes. Received, in bytes:"
    return checked(texts, sizes <= TEXT_BYTES, message, sizes)


def checked_ids(preset: Preset, inputs: Tensors) -> Tensors:
    """The model's embeddings would read another row, or none, where there's no such id."""
    config = preset.config
    shape = tf.shape(inputs["token_ids"])
    for name, ids in inputs.items():
        ids = same_shape(ids, inputs["token_ids"], name)
        longest = config.max_sequence_length
        message = f"Rows must have at most {longest} tokens. Received:"
        inputs = inputs | {name: checked(ids, shape[1] <= longest, message, shape[1])}
    for name, rows in (
        ("token_ids", config.vocabulary_size),
        ("segment_ids", config.num_segments),
    ):
        ids = inputs[name]
        message = f"`{name}` must be in [0, {rows}). Received:"
        inputs[name] = checked(ids, (ids >= 0) & (ids < rows), message, ids)
    counts = tf.reduce_sum(tf.cast(inputs["padding_mask"] > 0, tf.int32), axis=-1)
    message = "Every row must have a token where `padding_mask` isn't 0. Tokens:"
    return inputs | {"padding_mask": checked(inputs["padding_mask"], counts > 0, message, counts)}


def same_shape(ids: tf.Tensor, token_ids: tf.Tensor, name: str) -> tf.Tensor:
    """The same ids, of the tokens' shape, as others would be broadcast."""
    is_same = tf.reduce_all(tf.shape(ids) == tf.shape(token_ids))
    message = f"`{name}` must be as large as `token_ids`. Received:"
    return checked(ids, is_same, message, tf.shape(ids))


def checked(tensor: tf.Tensor, holds: tf.Tensor, message: str, values: tf.Tensor) -> tf.Tensor:
    """The same tensor; in the graph, an error with a sentence and values where not all holds.

    What needs the tensor waits for the check, and can't fail before it in words of its own. Of
    values as many as `holds`, the wrong ones are shown.
    """
    if holds.shape.rank:
        values = tf.boolean_mask(values, ~holds)
    check = tf.debugging.Assert(tf.reduce_all(holds), [message, values], summarize=8)
    with tf.control_dependencies([check]):
        return tf.identity(tensor)
