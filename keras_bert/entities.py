"""Entities in tags: names of people and places as spans of words, and the F1 of finding them.

A tag is `O` or a prefix, a hyphen and a type, such as `B-person`. What the prefixes say is read
once for all schemes, with the rules of the CoNLL-2000 evaluation (seqeval's default):

    IOB, IOB2   B begins an entity, I goes on with it; an I with nothing to go on with begins one
    IO          I alone, or the bare type: neighbours of one type are one entity
    BIOES       E is an entity's last word and S its only one; so do BILOU's L and U, BMES's M is I
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
# Prefixes of BILOU and BMES -> those of BIOES.
SAME_AS = {"L": "E", "U": "S", "M": "I"}
PREFIXES = {"B", "I", "E", "S", *SAME_AS}


class Entity(NamedTuple):
    """The words from `start` up to `end`, of one type."""

    start: int
    end: int
    type: str


class Score(NamedTuple):
    """Precision, recall and F1 of `true` entities, of which `right` were found."""

    precision: float
    recall: float
    f1: float
    true: int
    predicted: int
    right: int


def is_entity_tag(tag: str) -> bool:
    """Whether a tag is `O` or has a prefix, as `B-person` does."""
    prefix, hyphen, kind = tag.partition("-")
    return tag == OUTSIDE or bool(hyphen and kind and prefix in PREFIXES)


def entities(tags: Sequence[str], strict: bool = False) -> list[Entity]:
    """The entities of one sentence's tags.

    Args:
        tags: Of its words, in any of the schemes above.
        strict: Let an entity begin with B or S alone, as IOB2 and BIOES have it: an `I-x` with
            nothing of its type before it is none.

    References:
        - [Ramshaw and Marcus, 1995](https://arxiv.org/abs/cmp-lg/9505040), the tags.
        - [Tjong Kim Sang and Buchholz, 2000](https://aclanthology.org/W00-0726), section 3.
    """
    found: list[Entity] = []
    start, kind = 0, ""  # of the entity that may go on; no type: there's none
    for i, tag in enumerate(tags):
        prefix, this = _split(tag)
        if kind and prefix in ("I", "E") and this == kind:
            found[-1] = Entity(start, i + 1, kind)
        elif prefix == OUTSIDE or (strict and prefix not in ("B", "S")):
            kind = ""
        else:
            start, kind = i, this
            found.append(Entity(start, i + 1, kind))
        if prefix in ("E", "S"):
            kind = ""
    return found


def is_strict(tags: Iterable[Sequence[str]]) -> bool:
    """Whether most entities of sentences' tags begin with B or S, as IOB2 and BIOES have it.

    `strict` would find next to nothing in other schemes.
    """
    rows = list(tags)
    count = sum(len(entities(row)) for row in rows)
    return 2 * sum(len(entities(row, strict=True)) for row in rows) > count


def _split(tag: str) -> tuple[str, str]:
    """A tag's prefix in BIOES, and its type; a bare type's prefix is I."""
    prefix, _, kind = tag.partition("-")
    if tag == OUTSIDE or not is_entity_tag(tag):
        return (OUTSIDE, "") if tag == OUTSIDE else ("I", tag)
    return SAME_AS.get(prefix, prefix), kind


def entity_scores(
    true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], strict: bool = False
) -> dict[str, Score]:
    """Scores of each type of entity, and of all together under "".

    An entity is right if its first word, its last and its type are. Counts are summed over all
    sentences first ("micro"); where there's nothing to find or nothing found, the scores are 0.

    Args:
        true: Tags of each sentence.
        predicted: As many for each.
        strict: As for `entities`.
    """
    counts = {name: Counter[str]() for name in ("true", "predicted", "right")}
    for a, b in zip(true, predicted, strict=True):
        if len(a) != len(b):
            raise ValueError(
                "`predicted` must have a tag for each of `true`. "
                f"Received: {len(b)} tags for {len(a)}."
            )
        ours, theirs = set(entities(b, strict)), set(entities(a, strict))
        for name, group in (("true", theirs), ("predicted", ours), ("right", ours & theirs)):
            counts[name].update(entity.type for entity in group)
    kinds = sorted({*counts["true"], *counts["predicted"]})
    scores = {kind: _score(*(counts[name][kind] for name in counts)) for kind in kinds}
    return {"": _score(*(counts[name].total() for name in counts))} | scores


def _score(true: int, predicted: int, right: int) -> Score:
    precision, recall = right / max(predicted, 1), right / max(true, 1)
    f1 = 2 * right / (true + predicted) if right else 0.0
    return Score(precision, recall, f1, true, predicted, right)
