"""Exports of taggers: a tag and a place for each word."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.answers import class_names
from keras_bert.checkpoints import Preset
from keras_bert.entities import OUTSIDE
from keras_bert.export.rows import (
    Output,
    best_windows,
    computed,
    in_chunks,
    make_rows,
    slices,
    windows,
)
from keras_bert.export.signatures import (
    Signature,
    Tensors,
    checked_text,
    id_signatures,
    text_signature,
)
from keras_bert.layers.crf import SKIPPED, viterbi
from keras_bert.tokenizers import WordPiece

CHAIN_WORDS = 8192  # of the chains whose best paths are found at once


class Words(NamedTuple):
    """The words of B texts and the pieces that they're split into, as `keras_bert.windows.Words`.

    Attributes:
        words: string (B, None).
        starts: int32 (B, None), their places in code points.
        ends: int32 (B, None).
        has_piece: bool (B, None).
        ids: int32 (B, None), of the pieces.
        firsts: int32 (W',), the number of the first piece, among all texts' pieces, of each word
            that has one.
    """

    words: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor
    has_piece: tf.RaggedTensor
    ids: tf.RaggedTensor
    firsts: tf.Tensor


def signatures(preset: Preset) -> dict[str, Signature]:
    """`ids`, `text` and `words`: what `inference.tag` says, padded to as many words."""
    tokenizer = preset.tokenizer
    shape = preset.model.output["labels"].shape[2:]
    names = class_names(preset.labels, shape[-1])
    # The table may have rows beyond the vocabulary.
    rest = preset.config.vocabulary_size - tokenizer.vocabulary_size
    is_later = np.pad(tokenizer.is_later, (0, rest))
    longest = preset.max_sequence_length

    def logits(inputs: Tensors) -> tf.Tensor:
        return tf.cast(preset.model(inputs, training=False)["labels"], tf.float32)

    def of_pieces(inputs: Tensors, real: tf.Tensor) -> Tensors:
        """Of what stands between [CLS] and [SEP]."""
        return {"logits": tf.boolean_mask(logits(inputs)[:, 1:-1], real[:, 2:])}

    def tagged(text: Words) -> Tensors:
        lengths = tf.cast(text.ids.row_lengths(), tf.int32)
        size = longest - 2
        found = windows(lengths, size, max(1, size // 2))
        rows = make_rows(tokenizer, slices(text.ids, *found))
        output = Output(tf.TensorSpec((None, *shape), tf.float32), found.stops - found.starts)
        pieces = computed(preset, rows, of_pieces, {"logits": output})["logits"]
        words = tf.gather(pieces, tf.gather(best_windows(found, lengths), text.firsts))
        tags = tf.gather(tf.constant(names), every_class(words, text.has_piece, names))
        return {
            "words": text.words.to_tensor(""),
            "tags": text.words.with_flat_values(tags).to_tensor(""),
            "starts": text.starts.to_tensor(),
            "ends": text.ends.to_tensor(),
            "count": tf.cast(text.words.row_lengths(), tf.int32),
        }

    def from_ids(inputs: Tensors, real: tf.Tensor) -> Tensors:
        """Tags of the pieces; only a word's first is trained to have one."""
        ids, scores = inputs["token_ids"], logits(inputs)
        is_piece = real & (ids != tokenizer.cls_id) & (ids != tokenizer.sep_id)
        if len(shape) == 1:
            classes = tf.argmax(scores, axis=-1, output_type=tf.int32)
        else:
            is_word = is_piece & ~tf.gather(is_later, ids)
            classes = viterbi(scores, tf.where(is_word, 0, SKIPPED))
        return {"tags": tf.where(is_piece, tf.gather(tf.constant(names), classes), "")}

    def from_text(text: tf.Tensor) -> Tensors:
        return tagged(words_of(tokenizer, text))

    def from_words(words: tf.Tensor) -> Tensors:
        return tagged(given_words(tokenizer, checked_text(words, "words")))

    words = {"words": tf.TensorSpec((None, None), tf.string, "words")}
    made = id_signatures(preset, from_ids) | text_signature("text", from_text)
    return made | {"words": Signature(from_words, words)}


def words_of(tokenizer: WordPiece, texts: tf.Tensor) -> Words:
    """The words of texts by their tokenizer, as `keras_bert.windows.text_words`: string (B,)."""
    places = tokenizer.places_tf(texts)
    is_first = ~tf.gather(tokenizer.is_later, places.ids.flat_values)
    firsts = tf.cast(tf.where(is_first)[:, 0], tf.int32)
    lasts = tf.concat([firsts[1:], [tf.size(is_first)]], 0)[: tf.size(firsts)] - 1
    owners = tf.gather(places.ids.value_rowids(), firsts)
    starts, ends = (
        tf.RaggedTensor.from_value_rowids(
            tf.gather(values, where), owners, places.ids.nrows(), validate=False
        )
        for values, where in ((places.starts.flat_values, firsts), (places.ends.flat_values, lasts))
    )
    return Words(
        starts.with_flat_values(substrings(texts, owners, starts.flat_values, ends.flat_values)),
        starts,
        ends,
        starts.with_flat_values(tf.ones_like(owners, tf.bool)),
        places.ids,
        firsts,
    )


def substrings(
    texts: tf.Tensor, owners: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
) -> tf.Tensor:
    """Parts of texts, by code points: string (B,), int (N,) each -> string (N,).

    Cut from the code points, as a text for each part would take its size times their number.
    """
    codes = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
    return tf.strings.unicode_encode(slices(codes, owners, starts, ends), "UTF-8")


def given_words(tokenizer: WordPiece, words: tf.Tensor) -> Words:
    """Words that came split, as `keras_bert.windows.given_words`: string (B, W), "" at the end."""
    columns = tf.range(1, tf.shape(words)[1] + 1)
    counts = tf.reduce_max(tf.where(words != "", columns, 0), axis=1)
    each = tf.RaggedTensor.from_tensor(words, lengths=tf.maximum(counts, 0))
    # As the tokenizer reads them: without invalid bytes.
    valid = tf.strings.unicode_transcode(each.flat_values, "UTF-8", "UTF-8", errors="ignore")
    sizes = tf.strings.length(valid, "UTF8_CHAR")
    pieces = tokenizer.to_tf(valid, core_ops=True)
    has_piece = pieces.row_lengths() > 0
    before = tf.cumsum(sizes + 1, exclusive=True)
    begins = tf.gather(tf.concat([before, [0]], 0), each.row_starts())
    starts = before - tf.gather(begins, each.value_rowids())
    firsts = tf.boolean_mask(tf.cast(pieces.row_starts(), tf.int32), has_piece)
    splits = tf.gather(pieces.row_splits, each.row_splits)
    return Words(
        each.with_flat_values(valid),
        each.with_flat_values(starts),
        each.with_flat_values(starts + sizes),
        each.with_flat_values(has_piece),
        tf.RaggedTensor.from_row_splits(pieces.flat_values, splits, validate=False),
        firsts,
    )


def every_class(scores: tf.Tensor, has_piece: tf.RaggedTensor, names: tuple[str, ...]) -> tf.Tensor:
    """The class of every word, int32 (W,), as `answers.word_tags` has it.

    Args:
        scores: float (W', C), or (W', C + 1, C) of a CRF, of the words that have a piece.
        has_piece: bool (B, None).
        names: The classes'.
    """
    counts = tf.reduce_sum(tf.cast(has_piece, tf.int32), axis=-1)
    classes = tf.concat([best_classes(scores, counts), [0]], 0)
    # A word without a piece is as the one before it, at a text's start as the next.
    number = tf.cumsum(tf.cast(has_piece.flat_values, tf.int32)) - 1
    text = has_piece.value_rowids()
    number = tf.maximum(number, tf.gather(tf.cumsum(counts, exclusive=True), text))
    found = tf.where(tf.gather(counts, text) > 0, tf.gather(classes, number), 0)
    if OUTSIDE in names:
        found = tf.where(has_piece.flat_values, found, names.index(OUTSIDE))
    return found


def best_classes(scores: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """The likeliest classes, by a CRF the likeliest together: int32 (W',), `counts` (B,) a text."""
    if len(scores.shape) == 2:
        return tf.argmax(scores, axis=-1, output_type=tf.int32)
    by_text = tf.RaggedTensor.from_row_lengths(scores, counts)

    def chains(chosen: tf.Tensor, longest: tf.Tensor) -> Tensors:
        shape = tf.stack([tf.size(chosen), longest, *scores.shape[1:]])
        potentials = tf.gather(by_text, chosen).to_tensor(shape=shape)
        is_word = tf.sequence_mask(tf.gather(counts, chosen), longest)
        path = viterbi(potentials, tf.where(is_word, 0, SKIPPED))
        return {"classes": tf.boolean_mask(path, is_word)}

    output = Output(tf.TensorSpec((None,), tf.int32), counts)
    return in_chunks(counts, CHAIN_WORDS, chains, {"classes": output})["classes"]
