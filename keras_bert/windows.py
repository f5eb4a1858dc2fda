"""Long sequences in windows that overlap: which there are, and what counts in which.

Training and predicting cut their texts here, so that a model meets what it was trained on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.tokenizers import WordPiece

# The numbers of the original code for SQuAD, in tokens.
QUESTION_LENGTH, STRIDE = 64, 128


class Window(NamedTuple):
    """A part of a long sequence of tokens: where it starts and stops, and what counts in it."""

    start: int
    stop: int
    owned: np.ndarray  # int (P,), numbers of tokens of the whole sequence


def windows(count: int, size: int, stride: int) -> list[Window]:
    """Covers `count` tokens with windows of `size`, one every `stride`, or `size` if that's less.

    A token belongs to the window in which it has the most context, that on its poorer side;
    among equals to the longer window, then to the earlier.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), `run_squad.py` of its code.
    """
    stride = min(stride, size)
    starts = range(0, max(0, count - size) + stride, stride) if count else ()
    places = [(start, min(start + size, count)) for start in starts]
    tokens, owner, most = np.arange(count), np.zeros(count, int), np.full(count, -np.inf)
    for i, (start, stop) in enumerate(places):
        own = tokens[start:stop]
        context = np.minimum(own - start, stop - 1 - own) + 0.01 * (stop - start)
        better = own[context > most[start:stop]]
        owner[better], most[better] = i, context[better - start]
    return [
        Window(start, stop, start + np.flatnonzero(owner[start:stop] == i))
        for i, (start, stop) in enumerate(places)
    ]


class Words(NamedTuple):
    """A text's W words, each with its place, and the P pieces that they're split into."""

    words: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    ids: list[int]  # (P,)
    firsts: list[int]  # (W,), the number of each word's first piece; -1: it has none


def given_words(tokenizer: WordPiece, words: Any) -> Words:
    """Words that came split, placed as if joined by spaces.

    Each stays one, even if it's of several of the tokenizer's words. One in which the tokenizer
    finds nothing, such as a zero-width space, has no piece.
    """
    starts: list[int] = []
    ends: list[int] = []
    ids: list[int] = []
    firsts: list[int] = []
    start = 0
    for word in words:
        pieces: Any = tokenizer(word)
        starts.append(start)
        ends.append(start + len(word))
        firsts.append(len(ids) if pieces else -1)
        ids += pieces
        start += len(word) + 1
    return Words(tuple(words), tuple(starts), tuple(ends), ids, firsts)


def text_words(tokenizer: WordPiece, text: str) -> Words:
    """The words of a text by its tokenizer: split at spaces, punctuation and ideographs."""
    encoding = tokenizer.encode(text)
    places: list[tuple[int, int]] = []
    firsts: list[int] = []
    pieces = zip(encoding.tokens[1:-1], encoding.offsets[1:-1], strict=True)
    for i, (piece, (start, end)) in enumerate(pieces):
        if len(piece) > 2 and piece.startswith("##"):
            places[-1] = (places[-1][0], end)
        else:
            firsts.append(i)
            places.append((start, end))
    starts, ends = zip(*places, strict=True) if places else ((), ())
    words = tuple(text[start:end] for start, end in places)
    return Words(words, starts, ends, encoding.token_ids[1:-1], firsts)


def word_windows(count: int, max_sequence_length: int) -> list[Window]:
    """Windows on `count` pieces between [CLS] and [SEP]; they overlap by half."""
    size = max_sequence_length - 2
    return windows(count, size, max(1, size // 2))


class QuestionRow(NamedTuple):
    """A question and a window on its context, as the model reads them.

    The window's first token stands at `offset`.
    """

    token_ids: list[int]
    segment_ids: list[int]
    offset: int
    window: Window


def question_rows(
    tokenizer: WordPiece,
    question: str,
    context: list[int],
    max_sequence_length: int,
    stride: int | None = None,
    where: str = "",
) -> list[QuestionRow]:
    """[CLS] question [SEP] window [SEP] for each window on a context.

    Args:
        tokenizer: For the question, which is cut at 64 tokens.
        question: Any text, even "".
        context: Ids of its tokens.
        max_sequence_length: The longest row.
        stride: Tokens from one window to the next, the window's own length at most; None: 128, or
            half of the window's where that's less.
        where: What the error's message begins with: file and question.

    Raises:
        InputError: The question leaves no room for a token of its context.
    """
    asked: Any = tokenizer(question)[:QUESTION_LENGTH]
    size = max_sequence_length - len(asked) - 3
    if size < 1:
        raise InputError(
            f"{where}: a question of {len(asked)} tokens and three of [CLS] and [SEP] leave no "
            f"room for its context in max_sequence_length={max_sequence_length}: raise that to "
            f"{len(asked) + 4} at least, or shorten the question."
        )
    asked = [tokenizer.cls_id, *asked, tokenizer.sep_id]
    rows = []
    for window in windows(len(context), size, stride or min(STRIDE, max(1, size // 2))):
        shown = [*context[window.start : window.stop], tokenizer.sep_id]
        segment_ids = [0] * len(asked) + [1] * len(shown)
        rows.append(QuestionRow(asked + shown, segment_ids, len(asked), window))
    return rows


def answer_positions(row: QuestionRow, first: int, last: int) -> tuple[int, int]:
    """Where in a row the answer from token `first` to `last` of the context starts and ends.

    (0, 0), [CLS], where the window doesn't hold all of it.
    """
    start, stop, _ = row.window
    if not start <= first <= last < stop:
        return 0, 0
    return row.offset + first - start, row.offset + last - start
