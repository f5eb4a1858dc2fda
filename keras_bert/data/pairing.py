"""Sentences -> pairs: which ranges of a text's tokens make the A and the B of each example."""

from __future__ import annotations

import bisect
import collections
import random
from typing import Literal

import numpy as np

# What an example is, and what its next_sentence 1 says: B is of another document (BERT); A and B
# are swapped (ALBERT); an example is one text and has no label (RoBERTa).
PairMode = Literal["next_sentence", "sentence_order", "full_sentences"]
CONTINUATION, RANDOM, SWAPPED = 0, 1, 1


def split_evenly(bounds: np.ndarray, longest: int) -> list[int]:
    """The bounds of a document's pieces: its sentences, or equal parts of one that is longer."""
    lengths = np.diff(bounds)
    if lengths.max() <= longest and lengths.min() > 0:
        return bounds.tolist()
    counts = -(-lengths // longest)  # none for a sentence without tokens
    total = np.repeat(counts, counts)
    number = np.arange(len(total)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(bounds[:-1], counts) + np.repeat(lengths, counts) * number // total
    return [*starts.tolist(), int(bounds[-1])]


class Pairer:
    """Turns documents, as the bounds of their sentences, into rows of an example each.

    A row is the start and end of A, those of B, the label, and the documents of A and B.

    What the modes mean, `examples.make_examples` says.

    A fair coin decides each label, until the pairs that are sure to come are just enough to
    make the counts equal. (Strict turns would tie the label to what the pair before left over.)

    A sentence that's left alone at the end of a document can't be cut into A and B. It waits
    in `singles`, as (start, end, document), to be the A of the next random pair.
    """

    def __init__(self, bounds: list[list[int]], room: int, seed: int):
        self.bounds = bounds
        self.room = room
        self.rng = random.Random(seed)  # noqa: S311 - faster than NumPy's for one number at a time
        self.rows: list[tuple[int, ...]] = []
        self.excess = 0  # pairs of label 1 so far minus those of label 0
        self.singles: collections.deque[tuple[int, int, int]] = collections.deque()

    def make(self, mode: PairMode, short_sequence_probability: float) -> int:
        """Makes all rows; returns the number of tokens that reached none."""
        self.short_probability = short_sequence_probability
        if mode == "full_sentences":
            for index in range(len(self.bounds)):
                self._add_texts(index)
            return 0
        min_pairs = [
            _min_pairs(bounds[-1] - bounds[0], self.room) if len(bounds) > 2 else 0
            for bounds in self.bounds
        ]
        pairs_to_come = sum(min_pairs)
        add = self._add_next_sentence if mode == "next_sentence" else self._add_sentence_order
        for index, count in enumerate(min_pairs):
            pairs_to_come -= count
            add(index, pairs_to_come)
        tokens_lost = self._use_singles(mode)
        if self.excess:
            self._even_out()
        return tokens_lost

    def _add_texts(self, index: int) -> None:
        bounds = self.bounds[index]
        i = 0
        while i < len(bounds) - 1:
            limit = max(bounds[i] + self._target(), bounds[i + 1])
            j = bisect.bisect_right(bounds, limit, i + 1) - 1
            self.rows.append((bounds[i], bounds[j], 0, 0, CONTINUATION, index, index))
            i = j

    def _add_next_sentence(self, index: int, pairs_to_come: int) -> None:
        bounds = self.bounds[index]
        start, i = bounds[0], 1  # bounds[i] is the first beyond start
        while i < len(bounds) - 1:
            label = self._next_label(_min_pairs(bounds[-1] - start, self.room) + pairs_to_come)
            if label == RANDOM and self.singles:
                self._add_single(*self.singles.popleft())
                continue
            j, end = self._chunk(bounds, start, i)
            middle_at = i + int(self.rng.random() * (j - i))
            middle = bounds[middle_at]
            if label == CONTINUATION:
                self._add(start, middle, middle, end, CONTINUATION, index, index)
                start, i = end, j + 1
            else:
                self._add_random(start, middle, index, end - middle, whole=end == bounds[j])
                start, i = middle, middle_at + 1  # the rest wasn't used: it begins the next chunk
        if start < bounds[-1]:
            self.singles.append((start, bounds[-1], index))

    def _add_sentence_order(self, index: int, pairs_to_come: int) -> None:
        bounds = self.bounds[index]
        start, i = bounds[0], 1
        while i < len(bounds) - 1:
            label = self._next_label(_min_pairs(bounds[-1] - start, self.room) + pairs_to_come)
            j, end = self._chunk(bounds, start, i)
            middle = bounds[i + int(self.rng.random() * (j - i))]
            self._add_ordered(start, middle, end, label, index)
            start, i = end, j + 1
        if start < bounds[-1]:
            self.singles.append((start, bounds[-1], index))

    def _use_singles(self, mode: PairMode) -> int:
        """Uses the last single sentences; returns the number of tokens that found no place."""
        # Long ones last: they can be cut in two where a true pair is due, one token can't.
        waiting = collections.deque(sorted(self.singles, key=lambda single: single[1] - single[0]))
        while waiting:
            start, end, index = waiting[-1]
            label = self._next_label()
            if label == RANDOM and mode == "next_sentence":
                self._add_single(*waiting.popleft())
            elif end - start > 1:
                waiting.pop()
                self._add_ordered(start, (start + end) // 2, end, label, index)
            elif self.excess == 0 and mode == "next_sentence":
                self._add_single(*waiting.popleft())
            else:
                break
        return len(waiting)  # one token each

    def _even_out(self) -> None:
        """Makes two examples of one that has the rarer label, so that there are as many of each."""
        rarer = CONTINUATION if self.excess > 0 else RANDOM
        for at in range(len(self.rows) - 1, -1, -1):
            a, a_end, b, b_end, label, *documents = self.rows[at]
            if label != rarer or min(a_end - a, b_end - b) < 2:
                continue
            a_half, b_half = (a + a_end) // 2, (b + b_end) // 2
            if documents[0] != documents[1]:  # each half of A with a text that isn't its next
                pieces = (a, a_half, b, b_half), (a_half, a_end, b_half, b_end)
            elif a < b:
                pieces = (a, a_half, a_half, a_end), (b, b_half, b_half, b_end)
            else:  # swapped
                pieces = (a_half, a_end, a, a_half), (b_half, b_end, b, b_half)
            self.rows[at : at + 1] = [(*piece, label, *documents) for piece in pieces]
            return

    def _target(self) -> int:
        if self.rng.random() < self.short_probability:
            return 2 + int(self.rng.random() * (self.room - 1))
        return self.room

    def _next_label(self, min_pairs_left: int = 0) -> int:
        if self.excess == 0 or abs(self.excess) < min_pairs_left:
            return int(self.rng.random() < 0.5)
        return 0 if self.excess > 0 else 1

    def _chunk(self, bounds: list[int], start: int, i: int) -> tuple[int, int]:
        """The bound after the two or more sentences that fit the target, and the chunk's end.

        The last sentence of a document may exceed the target, rather than be left alone. The
        first tokens of the next sentence fill what is left of the target.
        """
        target = self._target()
        j = bisect.bisect_right(bounds, max(start + target, bounds[i + 1]), i + 1) - 1
        if j == len(bounds) - 2 and bounds[-1] - start <= self.room:
            j += 1
        return j, max(bounds[j], min(start + target, bounds[-1]))

    def _add_single(self, start: int, end: int, index: int) -> None:
        # It stands in the place of no text. True pairs at the end of a document are of any length.
        target = 1 + int(self.rng.random() * (self.room - (end - start)))
        self._add_random(start, end, index, target, whole=True)

    def _add_random(self, start: int, end: int, index: int, b_length: int, whole: bool) -> None:
        other, *b = self._random_text(index, b_length, self.room - (end - start), whole)
        self._add(start, end, *b, RANDOM, index, other)

    def _add_ordered(self, start: int, middle: int, end: int, label: int, index: int) -> None:
        if label == SWAPPED:
            self._add(middle, end, start, middle, label, index, index)
        else:
            self._add(start, middle, middle, end, label, index, index)

    def _add(self, *row: int) -> None:
        self.rows.append(row)
        self.excess += 1 if row[4] else -1

    def _random_text(self, index: int, target: int, room: int, whole: bool) -> tuple[int, int, int]:
        """(document, start, end) of `target` tokens of another one, from a sentence's start.

        If `whole`, the text ends with a sentence where it can: as near to the target as may be.
        """
        for _ in range(10):  # ten draws to find a document that is long enough
            other = int(self.rng.random() * (len(self.bounds) - 1))
            other += other >= index
            bounds = self.bounds[other]
            if bounds[-1] - bounds[0] >= target:
                break
        # Starts early enough for the target to be reached.
        num_starts = max(1, bisect.bisect_right(bounds, bounds[-1] - target))
        at = int(self.rng.random() * num_starts)
        start = bounds[at]
        if not whole:
            return other, start, min(start + target, bounds[-1])
        after = min(bisect.bisect_left(bounds, start + target, at + 1), len(bounds) - 1)
        end, before = bounds[after], bounds[after - 1]
        overshoots = end - start - target > target - (before - start) or end - start > room
        if before > start and overshoots:
            end = before
        return other, start, min(end, start + room)


def _min_pairs(num_tokens: int, room: int) -> int:
    """Pairs that a document of two sentences or more gives: at most its last one is left over."""
    return max(1, (num_tokens - room // 2) // room)
