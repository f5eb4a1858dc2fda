"""The answers of `inference`, and how they are made of logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.entities import OUTSIDE
from keras_bert.errors import InputError
from keras_bert.evaluation import sigmoid, softmax

ANSWER_LENGTH = 30  # tokens, the bound of the original code for SQuAD


class Filling(NamedTuple):
    """The likeliest tokens for one [MASK], best first, and their probabilities."""

    tokens: tuple[str, ...]
    scores: tuple[float, ...]


class Classification(NamedTuple):
    """The likeliest class, its probability, and the probability of every class."""

    label: str | None
    score: float
    scores: dict[str, float]


class MultiLabel(NamedTuple):
    """A `Classification` where several labels may hold, and `labels`, those that do."""

    label: str
    score: float
    scores: dict[str, float]
    labels: tuple[str, ...]


class Tagging(NamedTuple):
    """Words with their tags; they start and end at these code points of the text."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]


class Answer(NamedTuple):
    """`answer` is `context[start:end]`, in code points; `score` is its probability."""

    answer: str
    start: int
    end: int
    score: float


def filling(logits: np.ndarray, vocabulary: list[str], top_k: int) -> Filling:
    """The likeliest of the vocabulary's tokens; a table may have rows beyond it: float (V,)."""
    scores = softmax(logits[: len(vocabulary)])
    best = np.argsort(-scores, kind="stable")[:top_k].tolist()
    return Filling(tuple(vocabulary[token] for token in best), tuple(scores[best].tolist()))


def classification(
    logits: np.ndarray, labels: Sequence[str], multi_label: bool, threshold: float = 0.5
) -> Classification | MultiLabel:
    """The classes' scores, float (C,): as `inference.classify` says."""
    if multi_label:
        scores = sigmoid(logits)
    elif len(logits) == 1:
        return Classification(None, float(logits[0]), {})
    else:
        scores = softmax(logits)
    names = class_names(labels, len(logits))
    best = int(scores.argmax())
    by_name = dict(zip(names, scores.tolist(), strict=True))
    if not multi_label:
        return Classification(names[best], float(scores[best]), by_name)
    hold = tuple(name for name in names if by_name[name] >= threshold)
    return MultiLabel(names[best], float(scores[best]), by_name, hold)


def class_names(labels: Sequence[str], count: int) -> tuple[str, ...]:
    """The classes' names, or their numbers where they have none."""
    if len(set(labels)) < len(labels):
        raise InputError(f"The preset's labels must differ. Received: {', '.join(labels)}.")
    if labels and len(labels) != count:
        raise InputError(f"The preset has {len(labels)} labels for {count} classes.")
    return tuple(labels) or tuple(str(i) for i in range(count))


def span_scores(starts: np.ndarray, ends: np.ndarray, longest: int) -> np.ndarray:
    """The sums of a span's two logits, float (T,) each: (T, longest).

    Row i, column k is that of the span from i to i + k, and -inf where T ends before it.
    """
    ends = np.pad(ends, (0, longest - 1), constant_values=-np.inf)
    return starts[:, None] + np.lib.stride_tricks.sliding_window_view(ends, longest)


class Reading(NamedTuple):
    """What was found in a context, before it's decided whether that's an answer.

    Attributes:
        spans: The best spans of different texts, best first; their scores are the probabilities
            among all spans. None where the context holds no word.
        logits: Sums of each span's two logits.
        nothing: The probability of "no answer" among all spans and itself.
        null_odds: By how much the score of "no answer" exceeds the best span's.
    """

    spans: tuple[Answer, ...]
    logits: tuple[float, ...]
    nothing: float
    null_odds: float

    def answer(self, threshold: float | None = None) -> Answer:
        """The best span, or "" where the null odds exceed the threshold; None: never."""
        if not self.spans:
            return Answer("", 0, 0, 0.0)
        if threshold is None:
            return self.spans[0]
        if self.null_odds > threshold:
            return Answer("", 0, 0, self.nothing)
        return self.spans[0]._replace(score=self.spans[0].score * (1 - self.nothing))


def reading(
    context: str, offsets: list[tuple[int, int]], spans: np.ndarray, nothing: float, count: int = 1
) -> Reading:
    """The best spans of a context of P tokens.

    Args:
        context: From which answers are cut.
        offsets: The tokens' places in it.
        spans: float (P, longest answer), as `span_scores`.
        nothing: The score of "no answer".
        count: The most spans to name.
    """
    if not len(spans):
        return Reading((), (), 0.0, 0.0)
    flat = spans.ravel()
    scores = softmax(flat)
    found: dict[str, tuple[Answer, float]] = {}
    for best in np.argsort(-flat, kind="stable"):
        if len(found) == count or np.isneginf(flat[best]):
            break
        first, more = divmod(int(best), spans.shape[1])
        start, end = offsets[first][0], offsets[first + more][1]
        answer = Answer(context[start:end], start, end, float(scores[best]))
        found.setdefault(answer.answer, (answer, float(flat[best])))
    answers, logits = zip(*found.values(), strict=True)
    none = float(softmax(np.append(flat, nothing))[-1])
    return Reading(answers, logits, none, float(nothing - flat.max()))


def word_tags(
    classes: Sequence[int] | np.ndarray, firsts: Sequence[int], names: Sequence[str]
) -> list[str]:
    """Each word's tag.

    A word without a piece is `O`, or, where the names have none, what the word before it is (at
    a text's start the next one; and the first name where no word has a piece).

    Args:
        classes: int (W',), of the words that have a piece.
        firsts: (W,), the number of each word's first piece; -1: it has none.
        names: The classes' names.
    """
    found = iter(classes)
    before = names[classes[0]] if len(classes) else names[0]
    tags = []
    for first in firsts:
        if first >= 0:
            before = names[next(found)]
        tags.append(OUTSIDE if first < 0 and OUTSIDE in names else before)
    return tags
