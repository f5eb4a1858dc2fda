"""How good answers are: exact match and F1 by the official rules of SQuAD and of CMRC 2018."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
# The marks that CMRC 2018's script drops for exact match, and counts one by one for F1.
_CHINESE_MARKS = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")


class Agreement(NamedTuple):
    """Exact match, 0 or 1, and F1 from 0 to 1."""

    exact_match: float
    f1: float


def squad_agreement(prediction: str, truth: str) -> Agreement:
    """SQuAD's rules: case, ASCII punctuation, articles and white space don't count.

    F1 is over words. Where one of the two is empty after all that, it's 1 if both are, else 0
    (SQuAD 2.0's rule: "" is the answer where there's none).

    References:
        - [Rajpurkar et al., 2018](https://arxiv.org/abs/1806.03822), and the script published
          with it.
    """
    ours, theirs = squad_words(prediction), squad_words(truth)
    exact = float(ours == theirs)
    if not ours or not theirs:
        return Agreement(exact, exact)
    common = (Counter(ours) & Counter(theirs)).total()
    return Agreement(exact, _f1(common, len(ours), len(theirs)))


def squad_words(text: str) -> list[str]:
    """The words by which SQuAD compares answers."""
    return _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split()


def cmrc_agreement(prediction: str, truth: str) -> Agreement:
    """CMRC 2018's rules: F1 of the longest common run, in ideographs and in other scripts' words.

    Marks of punctuation don't count for either. A question without an answer, which CMRC 2018
    has none of, is answered right by "" alone.

    References:
        - [Cui et al., 2019](https://arxiv.org/abs/1810.07366), section 3.1, and the script
          published with it.
    """
    if not truth:
        same = float(not prediction)
        return Agreement(same, same)
    exact = float(_without_marks(prediction) == _without_marks(truth))
    ours, theirs = cmrc_segments(prediction), cmrc_segments(truth)
    common = _longest_common_run(ours, theirs)
    return Agreement(exact, _f1(common, len(ours), len(theirs)))


def cmrc_segments(text: str) -> list[str]:
    """A text's ideographs one by one, and between them words and other marks.

    The published script splits what is between ideographs with NLTK's tokenizer, which keeps
    decimals whole; everywhere else in CMRC 2018 the two agree.
    """
    segments: list[str] = []
    run = ""
    for char in text.lower().strip():
        if char in _CHINESE_MARKS:
            continue
        if "\u4e00" <= char <= "\u9fa5":
            segments += [*_WORD_OR_MARK.findall(run), char]
            run = ""
        else:
            run += char
    return segments + _WORD_OR_MARK.findall(run)


def _without_marks(text: str) -> str:
    return "".join(char for char in text.lower().strip() if char not in _CHINESE_MARKS)


def _longest_common_run(a: Sequence[str], b: Sequence[str]) -> int:
    longest = 0
    before = [0] * (len(b) + 1)  # [j]: the common run that ends just before b[j] and this of a
    for x in a:
        now = [0] * (len(b) + 1)
        for j, y in enumerate(b):
            if x == y:
                now[j + 1] = before[j] + 1
        longest, before = max(longest, *now), now
    return longest


def _f1(common: int, predicted: int, true: int) -> float:
    if not common:
        return 0.0
    precision, recall = common / predicted, common / true
    return 2 * precision * recall / (precision + recall)


def best_agreement(
    agreement: Callable[[str, str], Agreement], prediction: str, truths: Sequence[str]
) -> Agreement:
    """The best exact match and the best F1 over a question's true answers; none: "".

    A true answer of which SQuAD's rules leave nothing, such as ".", isn't counted.
    """
    if agreement is squad_agreement:
        truths = [truth for truth in truths if squad_words(truth)]
    found = [agreement(prediction, truth) for truth in truths or [""]]
    return Agreement(max(x.exact_match for x in found), max(x.f1 for x in found))


def best_threshold(
    odds: Sequence[float], answering: Sequence[float], silent: Sequence[float]
) -> float:
    """The threshold of the odds of "no answer" at which the scores' sum is highest.

    A question goes unanswered where its odds exceed the threshold. It lies half-way between the
    two questions that it parts; below or above all of them where that's best.

    Args:
        odds: By how much the score of "no answer" exceeds the best span's.
        answering: Each question's score, such as F1, if its best span is given.
        silent: Its score if "" is.
    """
    values, gains = np.asarray(odds, float), np.subtract(answering, silent)
    order = np.argsort(values, kind="stable")
    values, totals = values[order], np.append(0, np.cumsum(gains[order]))
    cuts = np.concatenate([values[:1] - 1, (values[:-1] + values[1:]) / 2, values[-1:] + 1])
    # Two questions of equal odds can't be parted.
    allowed = np.concatenate([[True], values[:-1] < values[1:], [True]])
    return float(cuts[np.argmax(np.where(allowed, totals, -np.inf))])


def average_precision(scores: Sequence[float], positive: Sequence[bool]) -> float:
    """The mean precision at the positives, from the highest score down; ties count together.

    Picking by chance has the positives' share. NaN without a positive.
    """
    values = np.asarray(scores, float)
    order = np.argsort(-values, kind="stable")
    values = values[order]
    last = np.append(values[:-1] > values[1:], True)  # of those with an equal score
    right, seen = np.cumsum(np.asarray(positive, bool)[order])[last], np.flatnonzero(last) + 1
    gained = np.diff(right, prepend=0)
    return float((gained * right / seen).sum() / right[-1]) if right[-1] else float("nan")
