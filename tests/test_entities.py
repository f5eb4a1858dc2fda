"""Entities of tags, and their F1: seqeval's numbers on a thousand random predictions."""

from __future__ import annotations

import json
import random

import pytest
from conftest import TESTS
from test_cases import case  # noqa: F401 - a fixture

from keras_bert.entities import Entity, entities, entity_scores, is_strict

PREFIXES = ("BI", "I", "BIES")
TYPES = ["PER", "LOC", "creative-work"]


def random_predictions():
    """A thousand pairs of tagged sentences, in IOB2, IO and BIOES by turns."""
    draw = random.Random(7)
    for i in range(1000):
        types = TYPES[: draw.randint(1, 3)]
        tags = [f"{prefix}-{kind}" for prefix in PREFIXES[i % 3] for kind in types]
        tags += ["O"] * draw.randint(1, 4)
        true = [draw.choices(tags, k=draw.randint(1, 8)) for _ in range(draw.randint(1, 4))]
        yield true, [[tag if draw.random() < 0.6 else draw.choice(tags) for tag in row]
                     for row in true]  # fmt: skip


def test_seqeval_on_random_predictions():
    """The stored numbers were made by seqeval 1.2.2, by the test below."""
    stored = json.loads((TESTS / "golden" / "seqeval.json").read_text(encoding="utf-8"))
    pairs = list(random_predictions())
    assert len(pairs) == len(stored["default"]) == 1000
    for i, (true, predicted) in enumerate(pairs):
        score = entity_scores(true, predicted)[""]
        assert list(score[:3]) == pytest.approx(stored["default"][i], abs=1e-9)
        if i % 3 == 0:
            strict = entity_scores(true, predicted, strict=True)[""].f1
            assert strict == pytest.approx(stored["strict"][i // 3], abs=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_the_stored_numbers_are_seqevals():
    metrics = pytest.importorskip(
        "seqeval.metrics", reason="the stored numbers weren't compared: pip install seqeval"
    )
    scheme = pytest.importorskip("seqeval.scheme").IOB2
    stored = json.loads((TESTS / "golden" / "seqeval.json").read_text(encoding="utf-8"))
    functions = metrics.precision_score, metrics.recall_score, metrics.f1_score
    for i, (true, predicted) in enumerate(random_predictions()):
        scores = [float(function(true, predicted)) for function in functions]
        assert scores == pytest.approx(stored["default"][i], abs=1e-9)
        if i % 3 == 0:
            strict = metrics.f1_score(true, predicted, mode="strict", scheme=scheme)
            assert float(strict) == pytest.approx(stored["strict"][i // 3], abs=1e-9)


def test_the_rules(case):  # noqa: F811
    """NER-04."""
    given, expected = case("NER-04")
    for i, (true, predicted) in enumerate(given["cases"]):
        for name, strict in (("conll_f1", False), ("strict_iob2_f1", True)):
            score = entity_scores([true], [predicted], strict)[""].f1
            assert score == pytest.approx(expected[name][i], abs=1e-9)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-a I-a O B-a", [(0, 2, "a"), (3, 4, "a")]),
        ("I-a I-a B-a", [(0, 2, "a"), (2, 3, "a")]),  # IOB
        ("I-a I-b I-b", [(0, 1, "a"), (1, 3, "b")]),
        ("B-a E-a E-a S-a I-a", [(0, 2, "a"), (2, 3, "a"), (3, 4, "a"), (4, 5, "a")]),
        ("B-a L-a U-a", [(0, 2, "a"), (2, 3, "a")]),  # BILOU
        ("B-a M-a E-a", [(0, 3, "a")]),  # BMES
        ("a a O creative-work", [(0, 2, "a"), (3, 4, "creative-work")]),  # bare types
        ("B-creative-work I-creative-work", [(0, 2, "creative-work")]),
        ("O O", []),
    ],
)
def test_schemes(tags, expected):
    assert entities(tags.split()) == [Entity(*each) for each in expected]


def test_where_an_entity_must_begin_with_b_or_s():
    tags = ["S-a", "O", "B-a", "E-a", "I-b", "O", "I-a"]
    assert entities(tags, strict=True) == [(0, 1, "a"), (2, 4, "a")]
    assert is_strict([tags, ["B-a"]]) and not is_strict([["I-a", "B-a"], ["I-a"]])
    assert not is_strict([["O"]])


def test_scores_by_type():
    true, predicted = ["B-a", "O", "B-b", "I-b"], ["B-a", "B-b", "B-b", "O"]
    scores = entity_scores([true], [predicted])
    assert scores["a"] == (1, 1, 1, 1, 1, 1)
    assert scores["b"] == (0, 0, 0, 1, 2, 0)
    assert scores[""].f1 == pytest.approx(2 / 5)
    with pytest.raises(ValueError, match="3 tags for 4"):
        entity_scores([true], [predicted[:3]])
