"""Tokenized documents -> the examples BERT is pretrained on: sentence pairs, or single texts.

Examples are kept as ranges of one array of tokens, so that making millions of them is cheap.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from typing import NamedTuple, get_args

import numpy as np

from keras_bert.data.pairing import Pairer, PairMode, split_evenly
from keras_bert.errors import InputError

NUM_SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
MIN_SEQUENCE_LENGTH = NUM_SPECIAL_TOKENS + 2  # neither A nor B is empty


class TokenizedDocuments(NamedTuple):
    """The tokens of some documents, in a row.

    Attributes:
        token_ids: int32 (n,).
        sentence_ends: int64 (S,): the tokens up to the end of each sentence.
        document_ends: int64 (D,): the sentences up to the end of each document.
        works: int64 (D,): the index of the input that each document comes from.
        continues: int32 (n,): 1 where a token goes on with the word of the token before it, as a
            segmenter of words says; None where none has spoken.
    """

    token_ids: np.ndarray
    sentence_ends: np.ndarray
    document_ends: np.ndarray
    works: np.ndarray
    continues: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Example:
    """One example. The shapes and meanings are those of `records.SCHEMA`."""

    token_ids: list[int]
    segment_ids: list[int]
    next_sentence: int
    works: tuple[int, int]
    continues: list[int] | None = None


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples as ranges of an array of tokens; iterating gives each as an `Example`.

    Attributes:
        token_ids: int32 (n,), the tokens of all documents, then [CLS], then [SEP].
        continues: int32 (n,), or None where no segmenter has spoken.
        ranges: int64 (E, 4), the start and end of A, the start and end of B. B is empty where
            an example is a single text.
        next_sentence: int64 (E,).
        works: int64 (E, 2).
    """

    token_ids: np.ndarray
    continues: np.ndarray | None
    ranges: np.ndarray
    next_sentence: np.ndarray
    works: np.ndarray

    def __len__(self) -> int:
        return len(self.ranges)

    def __iter__(self) -> Iterator[Example]:
        where, ends = self.token_positions()
        token_ids, segment_ids = self.token_ids[where], self.segment_ids()
        continues = None if self.continues is None else self.continues[where]
        for i, (start, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
            yield Example(
                token_ids[start:end].tolist(),
                segment_ids[start:end].tolist(),
                int(self.next_sentence[i]),
                (int(self.works[i, 0]), int(self.works[i, 1])),
                None if continues is None else continues[start:end].tolist(),
            )

    def lengths(self) -> np.ndarray:
        """int64 (E,): the tokens of each example, special ones included."""
        return self._parts().sum(-1)

    def token_positions(self) -> tuple[np.ndarray, np.ndarray]:
        """For all examples in a row: where each token is in `token_ids`; each example's end."""
        cls_at = len(self.token_ids) - 2
        sep_at = np.full(len(self), cls_at + 1)
        a_start, _, b_start, _ = self.ranges.T
        starts = np.stack([sep_at - 1, a_start, sep_at, b_start, sep_at], -1).ravel()
        lengths = self._parts()
        flat = lengths.ravel()
        before = np.cumsum(flat) - flat
        where = np.repeat(starts - before, flat)
        where += np.arange(len(where))
        return where, np.cumsum(lengths.sum(-1))

    def segment_ids(self) -> np.ndarray:
        """For all examples in a row: 0 up to the first [SEP], 1 after it."""
        lengths = self._parts()
        parts = np.stack([lengths[:, :3].sum(-1), lengths[:, 3:].sum(-1)], -1).ravel()
        return np.repeat(np.tile([0, 1], len(self)), parts)

    def _parts(self) -> np.ndarray:
        """int64 (E, 5): the lengths of [CLS], A, [SEP], B and [SEP]."""
        a_start, a_end, b_start, b_end = self.ranges.T
        one = np.ones_like(a_start)
        has_b = (b_end > b_start).astype(np.int64)
        return np.stack([one, a_end - a_start, one, b_end - b_start, has_b], -1)


def make_examples(
    documents: TokenizedDocuments,
    max_sequence_length: int,
    seed: int,
    short_sequence_probability: float = 0.1,
    pairs: PairMode = "next_sentence",
    *,
    cls_id: int,
    sep_id: int,
) -> tuple[Examples, int]:
    """Packs consecutive sentences into examples `[CLS] A [SEP] B [SEP]`.

    A run of sentences that fills the target length is cut in two, between two sentences drawn
    at random. The target is the longest that fits, or with `short_sequence_probability` a random
    shorter one. What is cut off the last sentence to make it fit begins the next example. A
    sentence longer than half the room is first split evenly.

    `"next_sentence"`: half of the examples keep the second part as B (label 0); in the others B
    comes from another document (1) and the second part is used again. Where this departs from
    the original code, it is to keep labels and text honest: exactly half of the examples are
    random; a random B is never of A's own document, and is as long as the text in whose place
    it stands, so that length doesn't give the label away.

    `"sentence_order"`: half of the examples have A and B swapped (1).

    `"full_sentences"`: an example is `[CLS] A [SEP]`, whole sentences of one document up to the
    target, without a label (0).

    Args:
        documents: At least two that aren't empty, or one where no text of another is asked for.
        max_sequence_length: Most tokens in an example, specials included; at least 5.
        seed: The examples and their order are a function of the arguments and this seed.
        short_sequence_probability: Share of examples with a random, shorter target.
        pairs: What an example is.
        cls_id: Id of [CLS].
        sep_id: Id of [SEP].

    Returns:
        The examples in random order, with the labels in turn, so that any even number of them
        in a row is half random; and the number of tokens that reached none of them: only
        one-token remainders of documents, where there are too many to be paired.

    Raises:
        InputError: there is no text, or only one document with text, where two are needed.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.1, appendix A.2.
        - [Lan et al., 2019](https://arxiv.org/abs/1909.11942), section 3.1, sentence order.
        - [Liu et al., 2019](https://arxiv.org/abs/1907.11692), section 4.2, DOC-SENTENCES.
    """
    _check(max_sequence_length, short_sequence_probability, pairs)
    bounds = np.concatenate([[0], documents.sentence_ends])
    firsts = [0, *documents.document_ends.tolist()]
    sentences = [bounds[i : j + 1] for i, j in itertools.pairwise(firsts)]
    filled = [index for index, row in enumerate(sentences) if row[-1] > row[0]]
    if not filled:
        raise InputError("The input holds no text that could be tokenized: give other files.")
    if len(filled) == 1 and pairs == "next_sentence":
        raise InputError(
            "The input holds only one document, and random next sentences are drawn from other "
            "documents: add documents, or choose another document break."
        )
    room = max_sequence_length - NUM_SPECIAL_TOKENS + (pairs == "full_sentences")
    longest = room if pairs == "full_sentences" else room // 2
    pairer = Pairer([split_evenly(sentences[index], longest) for index in filled], room, seed)
    tokens_lost = pairer.make(pairs, short_sequence_probability)

    rows = np.array(pairer.rows, np.int64).reshape(-1, 7)
    rows = rows[_labels_in_turn(rows[:, 4], pairer.rng)]
    special, zeros = np.array([cls_id, sep_id], np.int32), np.zeros(2, np.int32)
    continues = documents.continues
    examples = Examples(
        token_ids=np.concatenate([documents.token_ids, special]),
        continues=None if continues is None else np.concatenate([continues, zeros]),
        ranges=rows[:, :4],
        next_sentence=rows[:, 4],
        works=documents.works[filled][rows[:, 5:]],
    )
    return examples, tokens_lost


def _check(max_sequence_length: int, short_sequence_probability: float, pairs: str) -> None:
    if max_sequence_length < MIN_SEQUENCE_LENGTH:
        raise ValueError(
            f"`max_sequence_length` must be at least {MIN_SEQUENCE_LENGTH}: three special tokens "
            f"and one each for A and B. Received: max_sequence_length={max_sequence_length}."
        )
    if not 0.0 <= short_sequence_probability <= 1.0:
        raise ValueError(
            "`short_sequence_probability` must be between 0 and 1. "
            f"Received: short_sequence_probability={short_sequence_probability}."
        )
    if pairs not in get_args(PairMode):
        raise ValueError(f"`pairs` must be one of {get_args(PairMode)}. Received: pairs={pairs!r}.")


def _labels_in_turn(labels: np.ndarray, rng: random.Random) -> np.ndarray:
    """A random order in which the two labels alternate, as long as there are both."""
    # Not NumPy's permutation, which may change with its version.
    order = np.argsort([rng.random() for _ in labels], kind="stable")
    ones, zeros = order[labels[order] == 1], order[labels[order] == 0]
    both = min(len(ones), len(zeros))
    in_turn = np.stack([ones[:both], zeros[:both]], -1).ravel()
    return np.concatenate([in_turn, ones[both:], zeros[both:]])
