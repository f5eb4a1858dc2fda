"""The answers of `inference`, and how they are made of logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.evaluation import softmax

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


def classification(logits: np.ndarray, labels: Sequence[str], multi_label: bool) -> Classification:
    """The classes' scores, float (C,): as `inference.classify` says."""
    if multi_label:
        scores = np.exp(-np.logaddexp(0.0, -logits.astype(np.float64)))  # the sigmoid
    elif len(logits) == 1:
        return Classification(None, float(logits[0]), {})
    else:
        scores = softmax(logits)
    names = class_names(labels, len(logits))
    best = int(scores.argmax())
    by_name = dict(zip(names, scores.tolist(), strict=True))
    return Classification(names[best], float(scores[best]), by_name)


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


def best_answer(
    context: str,
    offsets: list[tuple[int, int]],
    spans: np.ndarray,
    nothing: float,
    threshold: float | None = None,
) -> Answer:
    """The best span of a context of P tokens, or "" where nothing scores higher.

    Args:
        context: From which the answer is cut.
        offsets: The tokens' places in it.
        spans: float (P, ANSWER_LENGTH), as `span_scores`.
        nothing: The score of "no answer".
        threshold: By how much it must exceed the best span's. None: there's always an answer.
    """
    if not len(spans):
        return Answer("", 0, 0, 0.0)
    flat, best = spans.ravel(), int(spans.argmax())
    scores = softmax(flat if threshold is None else np.append(flat, nothing))
    if threshold is not None and nothing - flat[best] > threshold:
        return Answer("", 0, 0, float(scores[-1]))
    first, more = divmod(best, ANSWER_LENGTH)
    start, end = offsets[first][0], offsets[first + more][1]
    return Answer(context[start:end], start, end, float(scores[best]))
