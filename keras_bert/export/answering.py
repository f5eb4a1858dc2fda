"""Exports of readers: the answer to a question, cut from its context."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from keras_bert.answers import ANSWER_LENGTH
from keras_bert.checkpoints import Preset
from keras_bert.export.rows import (
    Output,
    best_windows,
    computed,
    in_chunks,
    make_rows,
    slices,
    windows,
)
from keras_bert.export.signatures import Signature, Tensors, checked, id_signatures, text_signature
from keras_bert.export.tagging import substrings
from keras_bert.windows import QUESTION_LENGTH, STRIDE

SPAN_TOKENS = 32_768  # of the contexts whose spans are compared at once


def signatures(preset: Preset) -> dict[str, Signature]:
    """`ids` and `question_context`: what `inference.answer` says."""
    settings, tokenizer = preset.settings, preset.tokenizer
    longest = preset.max_sequence_length
    answer_length = settings.get("max_answer_length", ANSWER_LENGTH)
    threshold = settings.get("no_answer_threshold")

    def of_context(inputs: Tensors, real: tf.Tensor) -> Tensors:
        """Logits of the context's tokens, and of [CLS] as the answer "there's none"."""
        found = preset.model(inputs, training=False)
        start, end = (tf.cast(found[name], tf.float64) for name in ("start", "end"))
        context = in_context(inputs["segment_ids"], real)
        return {
            "start": tf.boolean_mask(start, context),
            "end": tf.boolean_mask(end, context),
            "nothing": start[:, 0] + end[:, 0],
        }

    def from_texts(question: tf.Tensor, context: tf.Tensor) -> Tensors:
        asked = tokenizer.to_tf(question, core_ops=True)[:, :QUESTION_LENGTH]
        places = tokenizer.places_tf(context)
        sizes = longest - 3 - tf.cast(asked.row_lengths(), tf.int32)
        sizes = checked(
            sizes,
            sizes >= 1,
            f"`question` must leave room for its context in {longest} tokens. Left for it:",
            sizes,
        )
        lengths = tf.cast(places.ids.row_lengths(), tf.int32)
        stride = settings.get("stride") or tf.minimum(STRIDE, tf.maximum(1, sizes // 2))
        found = windows(lengths, sizes, stride)
        shown = found.stops - found.starts
        rows = make_rows(tokenizer, tf.gather(asked, found.owners), slices(places.ids, *found))
        spec = tf.TensorSpec((None,), tf.float64)
        outputs = {"start": Output(spec, shown), "end": Output(spec, shown)}
        logits = computed(preset, rows, of_context, outputs | {"nothing": Output(spec)})
        texts = tf.range(tf.size(question))
        nothing = tf.math.unsorted_segment_min(logits["nothing"], found.owners, tf.size(texts))
        read = Read(logits["start"], logits["end"], tf.repeat(tf.cumsum(shown), shown))
        best = best_spans(read, best_windows(found, lengths), lengths, answer_length)
        silent, score = decided(best, nothing, threshold)
        start = tf.where(silent, 0, _taken(places.starts.flat_values, best.first))
        end = tf.where(silent, 0, _taken(places.ends.flat_values, best.last))
        answer = substrings(context, texts, start, end)
        return {"answer": answer, "start": start, "end": end, "score": score}

    def from_ids(inputs: Tensors, real: tf.Tensor) -> Tensors:
        """Places of the answer's first and last token; (0, 0), [CLS], where there's none."""
        logits = of_context(inputs, real)
        context = in_context(inputs["segment_ids"], real)
        lengths = tf.reduce_sum(tf.cast(context, tf.int32), axis=-1)
        read = Read(logits["start"], logits["end"], tf.repeat(tf.cumsum(lengths), lengths))
        best = best_spans(read, tf.range(tf.reduce_sum(lengths)), lengths, answer_length)
        silent, score = decided(best, logits["nothing"], threshold)
        columns = tf.cast(tf.where(context)[:, 1], tf.int32)
        start, end = (tf.where(silent, 0, _taken(columns, x)) for x in (best.first, best.last))
        return {"start": start, "end": end, "score": score}

    return id_signatures(preset, from_ids) | text_signature("question_context", from_texts)


def in_context(segment_ids: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """Which tokens are of the second text, its [SEP] not included: bool (B, T)."""
    has_next = tf.pad(real[:, 1:], [[0, 0], [0, 1]])
    return (segment_ids == 1) & real & has_next


class Best(NamedTuple):
    """The best span of each of B contexts.

    Attributes:
        first: int32 (B,), its first token's number among all contexts'; -1: it has no token.
        last: int32 (B,).
        score: float64 (B,), the sum of its two logits.
        total: float64 (B,), the sum over all spans of exp(their score - the best's).
    """

    first: tf.Tensor
    last: tf.Tensor
    score: tf.Tensor
    total: tf.Tensor


class Read(NamedTuple):
    """What was read of P tokens: those of all windows, one window after the other.

    Attributes:
        starts: float64 (P,), logits.
        ends: float64 (P,), logits.
        stops: int32 (P,), where the window ends that a token is in.
    """

    starts: tf.Tensor
    ends: tf.Tensor
    stops: tf.Tensor


def best_spans(read: Read, places: tf.Tensor, lengths: tf.Tensor, answer_length: int) -> Best:
    """The best spans, each read in the window where its first token has the most context.

    Args:
        read: What was read in the windows.
        places: int32 (N,), where in it each token of all contexts is read.
        lengths: int32 (B,), the tokens of each context.
        answer_length: The most tokens of a span.
    """
    by_context = tf.RaggedTensor.from_row_lengths(places, lengths)
    bases = tf.cumsum(lengths, exclusive=True)

    def of_some(chosen: tf.Tensor, longest: tf.Tensor) -> Tensors:
        own = tf.gather(by_context, chosen)
        sizes = tf.gather(lengths, chosen)
        best = _best_spans(read, own.flat_values, sizes, answer_length)
        moved = tf.gather(bases, chosen) - tf.cumsum(sizes, exclusive=True)
        first, last = (tf.where(x < 0, -1, x + moved) for x in (best.first, best.last))
        return best._replace(first=first, last=last)._asdict()

    numbers, floats = (Output(tf.TensorSpec((None,), t)) for t in (tf.int32, tf.float64))
    outputs = {"first": numbers, "last": numbers, "score": floats, "total": floats}
    return Best(**in_chunks(lengths, SPAN_TOKENS, of_some, outputs))


def _best_spans(read: Read, places: tf.Tensor, lengths: tf.Tensor, answer_length: int) -> Best:
    """`best_spans` of few contexts, all spans of which are held at once."""
    reach = places[:, None] + tf.range(answer_length)
    is_span = reach < tf.gather(read.stops, places)[:, None]
    ends = tf.gather(read.ends, tf.minimum(reach, tf.size(read.ends) - 1))
    nothing = tf.constant(float("-inf"), tf.float64)
    scores = tf.where(is_span, tf.gather(read.starts, places)[:, None] + ends, nothing)

    owners, count = tf.repeat(tf.range(tf.size(lengths)), lengths), tf.size(lengths)
    of_token = tf.reduce_max(scores, axis=-1)
    score = tf.math.unsorted_segment_max(of_token, owners, count)
    odds = tf.exp(scores - tf.gather(score, owners)[:, None])
    total = tf.math.unsorted_segment_sum(tf.reduce_sum(odds, axis=-1), owners, count)
    # Of equals the first, as `answers.reading` takes it.
    number = tf.range(tf.size(places))
    is_best = of_token == tf.gather(score, owners)
    first = tf.math.unsorted_segment_min(tf.where(is_best, number, tf.size(number)), owners, count)
    first = tf.where(lengths > 0, first, -1)
    last = first + _taken(tf.argmax(scores, axis=-1, output_type=tf.int32), first)
    return Best(first, last, score, total)


def decided(best: Best, nothing: tf.Tensor, threshold: float | None) -> tuple[tf.Tensor, tf.Tensor]:
    """Whether there's no answer, bool (B,), and the score, float32 (B,), as `answers.Reading`.

    Args:
        best: The best spans.
        nothing: float64 (B,), the score of "there's none".
        threshold: By how much that must exceed the best span's; None: there's always an answer.
    """
    silent, score = best.first < 0, 1 / best.total
    if threshold is not None:
        odds = nothing - best.score
        none = 1 / (1 + best.total * tf.exp(-odds))
        unanswered = odds > threshold
        score = tf.where(unanswered, none, (1 - none) * score)
        silent |= unanswered
    score = tf.where(best.first < 0, tf.zeros_like(score), score)
    return silent, tf.cast(score, tf.float32)


def _taken(values: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """`values[numbers]`, int32, and 0 where a number is negative."""
    return tf.gather(tf.concat([values, [0]], 0), tf.where(numbers < 0, tf.size(values), numbers))
