"""Tokenized documents -> next-sentence pairs, the examples BERT is pretrained on."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from keras_bert.errors import InputError

NUM_SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
MIN_SEQUENCE_LENGTH = NUM_SPECIAL_TOKENS + 2  # neither A nor B is empty

CONTINUATION, RANDOM = 0, 1  # next_sentence: 0 = B follows A, 1 = B is random


@dataclasses.dataclass(frozen=True)
class TokenizedDocument:
    """The token ids of each sentence, and the index of the file they come from."""

    sentences: list[list[int]]
    work: int = 0


@dataclasses.dataclass(frozen=True)
class Example:
    """One pair. The shapes and meanings are those of `records.SCHEMA`."""

    token_ids: list[int]
    segment_ids: list[int]
    next_sentence: int
    works: tuple[int, int]


def sentence_pairs(
    documents: Sequence[TokenizedDocument],
    max_sequence_length: int,
    seed: int,
    short_sequence_probability: float = 0.1,
    *,
    cls_id: int,
    sep_id: int,
) -> tuple[list[Example], int]:
    """Packs consecutive sentences into examples `[CLS] A [SEP] B [SEP]`.

    A run of sentences that fills the target length is cut in two, between two sentences drawn
    at random. Half of the examples keep the second part as B (`next_sentence` 0); in the others
    B comes from another document (1) and the second part is used again. The target is the
    longest that fits, or with `short_sequence_probability` a random shorter one.

    Where this departs from the original code, it is to keep labels and text honest:
    exactly half of the examples are random (half a one more or less when their number is odd);
    a random B is never of A's own document, and is as long as the text in whose place it
    stands, so that length doesn't give the label away; what is cut off the last sentence to
    make it fit begins the next example. A sentence longer than half the room is first split
    evenly.

    Args:
        documents: At least two that aren't empty.
        max_sequence_length: Most tokens in an example, specials included; at least 5.
        seed: The examples and their order are a function of the arguments and this seed.
        short_sequence_probability: Share of examples with a random, shorter target.
        cls_id: Id of [CLS].
        sep_id: Id of [SEP].

    Returns:
        The examples, shuffled, and the number of tokens that reached none of them: only
        one-token remainders of documents, where there are too many to be paired.

    Raises:
        InputError: there are fewer than two documents with text.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.1 and appendix A.2.
    """
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
    room = max_sequence_length - NUM_SPECIAL_TOKENS
    pieces = [_Pieces(document, room // 2) for document in documents if any(document.sentences)]
    if not pieces:
        raise InputError("The input holds no text that could be tokenized: give other files.")
    if len(pieces) == 1:
        raise InputError(
            "The input holds only one document, and random next sentences are drawn from other "
            "documents: add documents, or choose another document break."
        )

    pairer = _Pairer(pieces, room, np.random.default_rng(seed))
    pairs_to_come = sum(document.min_pairs(room) for document in pieces)
    for index, document in enumerate(pieces):
        pairs_to_come -= document.min_pairs(room)
        pairer.add_document(index, short_sequence_probability, pairs_to_come)
    tokens_lost = pairer.finish()

    order = pairer.rng.permutation(len(pairer.pairs))
    examples = [_example(pairer.pairs[i], cls_id, sep_id) for i in order]
    return examples, tokens_lost


@dataclasses.dataclass(frozen=True)
class _Pair:
    a: list[int]
    b: list[int]
    next_sentence: int
    works: tuple[int, int]


class _Pieces:
    """A document whose sentences are at most `longest` tokens long: two fit in any example."""

    def __init__(self, document: TokenizedDocument, longest: int):
        self.work = document.work
        self.sentences = [
            piece for sentence in document.sentences for piece in _split_evenly(sentence, longest)
        ]
        lengths = [len(sentence) for sentence in self.sentences]
        self.tokens_from = np.cumsum(lengths[::-1])[::-1]  # from each sentence to the end

    def min_pairs(self, room: int) -> int:
        return _min_pairs(self.tokens_from[0], room) if len(self.sentences) > 1 else 0


class _Pairer:
    """Turns documents into pairs, of which half are random in the end.

    A fair coin decides for each pair, until the pairs that are sure to come are just enough to
    make the counts equal. (Strict turns would tie the label to what the pair before left over.)

    A sentence that's left alone at the end of a document can't be cut into A and B. It waits
    in `singles`, as (document, sentence), to be the A of the next random pair.
    """

    def __init__(self, documents: list[_Pieces], room: int, rng: np.random.Generator):
        self.documents = documents
        self.room = room
        self.rng = rng
        self.pairs: list[_Pair] = []
        self.excess = 0  # random pairs so far minus true ones
        self.singles: collections.deque[tuple[int, list[int]]] = collections.deque()

    def add_document(
        self, index: int, short_sequence_probability: float, pairs_to_come: int
    ) -> None:
        document = self.documents[index]
        sentences = list(document.sentences)
        start = 0
        while start < len(sentences) - 1:
            num_tokens = len(sentences[start]) + document.tokens_from[start + 1]
            label = self._next_label(_min_pairs(num_tokens, self.room) + pairs_to_come)
            if label == RANDOM and self.singles:
                self._add_single(*self.singles.popleft())
                continue
            target = self.room
            if self.rng.random() < short_sequence_probability:
                target = int(self.rng.integers(2, self.room + 1))
            end, room_left = self._chunk_end(sentences, start, target)
            # The first tokens of the next sentence fill what is left of the target.
            following = sentences[end] if end < len(sentences) else []
            head, tail = following[:room_left], following[room_left:]
            middle = int(self.rng.integers(start + 1, end))
            a, rest = _joined(sentences[start:middle]), _joined(sentences[middle:end]) + head
            if label == CONTINUATION:
                self._add_pair(a, rest, CONTINUATION, index, index)
                if head:
                    sentences[end] = tail
                start = end
            else:
                self._add_random(index, a, len(rest), whole=not tail)
                start = middle  # the rest wasn't used: it begins the next chunk
        if start < len(sentences):
            self.singles.append((index, sentences[start]))

    def finish(self) -> int:
        """Uses the last single sentences; returns the number of tokens that found no place."""
        # Long ones last: they can be cut in two where a true pair is due, one token can't.
        waiting = collections.deque(sorted(self.singles, key=lambda single: len(single[1])))
        while waiting:
            if self._next_label() == RANDOM:
                self._add_single(*waiting.popleft())
            elif len(waiting[-1][1]) > 1:
                index, sentence = waiting.pop()
                half = len(sentence) // 2
                self._add_pair(sentence[:half], sentence[half:], CONTINUATION, index, index)
            elif self.excess == 0:
                self._add_single(*waiting.popleft())
            else:
                break
        return len(waiting)  # one token each

    def _next_label(self, min_pairs_left: int = 0) -> int:
        if self.excess == 0 or abs(self.excess) < min_pairs_left:
            return int(self.rng.integers(2))
        return CONTINUATION if self.excess > 0 else RANDOM

    def _chunk_end(self, sentences: list[list[int]], start: int, target: int) -> tuple[int, int]:
        """The end of the two or more sentences that fit the target, and the tokens left to it.

        The last sentence of a document may exceed the target, rather than be left alone.
        """
        end = start + 2
        length = len(sentences[start]) + len(sentences[start + 1])
        target = max(target, length)
        while end < len(sentences):
            longer = length + len(sentences[end])
            is_last = end == len(sentences) - 1
            if longer > (self.room if is_last else target):
                break
            length, end = longer, end + 1
        return end, max(0, target - length)

    def _add_single(self, index: int, sentence: list[int]) -> None:
        # It stands in the place of no text. True pairs at the end of a document are of any length.
        target = int(self.rng.integers(1, self.room - len(sentence) + 1))
        self._add_random(index, sentence, target, whole=True)

    def _add_random(self, index: int, a: list[int], b_length: int, whole: bool) -> None:
        other, b = self._random_text(index, b_length, self.room - len(a), whole)
        self._add_pair(a, b, RANDOM, index, other)

    def _add_pair(self, a: list[int], b: list[int], label: int, a_from: int, b_from: int) -> None:
        works = (self.documents[a_from].work, self.documents[b_from].work)
        self.pairs.append(_Pair(a, b, label, works))
        self.excess += 1 if label == RANDOM else -1

    def _random_text(
        self, index: int, target: int, room: int, whole: bool
    ) -> tuple[int, list[int]]:
        """`target` tokens of another document, from the start of a sentence.

        If `whole`, the text ends with a sentence where it can: as near to the target as may be.
        """
        for _ in range(10):  # ten draws to find a document that is long enough
            other = int(self.rng.integers(len(self.documents) - 1))
            other += other >= index
            document = self.documents[other]
            if document.tokens_from[0] >= target:
                break
        # Starts early enough for the target to be reached.
        num_starts = max(1, int(np.count_nonzero(document.tokens_from >= target)))
        start = int(self.rng.integers(num_starts))

        text: list[int] = []
        for sentence in document.sentences[start:]:
            longer = text + sentence
            overshoots = len(longer) - target > target - len(text) or len(longer) > room
            if whole and text and overshoots:
                return other, text
            text = longer
            if len(text) >= target:
                break
        return other, text[: room if whole else target]


def _min_pairs(num_tokens: int, room: int) -> int:
    """Pairs that a document of two sentences or more gives: at most its last one is left over."""
    return max(1, (int(num_tokens) - room // 2) // room)


def _split_evenly(sentence: list[int], longest: int) -> list[list[int]]:
    num_pieces = -(-len(sentence) // longest)
    cuts = [len(sentence) * i // num_pieces for i in range(num_pieces + 1)] if sentence else []
    return [sentence[start:end] for start, end in itertools.pairwise(cuts)]


def _joined(sentences: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(sentences))


def _example(pair: _Pair, cls_id: int, sep_id: int) -> Example:
    return Example(
        token_ids=[cls_id, *pair.a, sep_id, *pair.b, sep_id],
        segment_ids=[0] * (len(pair.a) + 2) + [1] * (len(pair.b) + 1),
        next_sentence=pair.next_sentence,
        works=pair.works,
    )
