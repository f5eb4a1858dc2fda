"""The tagger's recipe as a user runs it, and the preset that it leaves."""

from __future__ import annotations

import dataclasses
import json

import keras
import numpy as np
import pytest
from test_recipes import load_recipe, run

import keras_bert
from keras_bert.data.tagged_words import TaggedSentence, read_tagged_sentences
from keras_bert.errors import InputError

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS)]
NAMES, OTHERS = ["ann", "bob", "cleo"], ["sees", "hears", "a", "the", "dog", "\u200b"]


def columns(count, seed):
    """Sentences in which every name is a person, and two in a row are one."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        before = "O"
        for word in rng.choice(NAMES + OTHERS, rng.integers(2, 9)):
            before = "O" if word in OTHERS else "B-PER" if before == "O" else "I-PER"
            lines.append(f"{word}\t{before}")
        lines.append("")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tagger")
    for seed, (name, count) in enumerate((("train", 64), ("dev", 12), ("test", 6))):
        (folder / f"{name}.conll").write_text(columns(count, seed), encoding="utf-8")
    keras.utils.set_random_seed(0)
    config = keras_bert.BertConfig(
        vocabulary_size=len(VOCABULARY), num_layers=1, num_heads=2, hidden_dim=32,
        intermediate_dim=64, max_sequence_length=32,
    )  # fmt: skip
    encoder = keras_bert.bert(config)
    preset = keras_bert.Preset(config, encoder, keras_bert.WordPiece(VOCABULARY), encoder)
    keras_bert.save(preset, folder / "base")
    return folder


def arguments(work, **changes):
    return {
        "checkpoint": work / "base",
        "train_file": work / "train.conll",
        "dev_file": work / "dev.conll",
        "max_sequence_length": 12,
        "batch_size": 8,
        "learning_rate": 1e-2,
    } | changes


@pytest.fixture(scope="module")
def trained(work):
    metrics = run("finetune_tagger", **arguments(work, epochs=5, test_file=work / "test.conll",
                                                 output_dir=work / "run"))  # fmt: skip
    return work / "run", metrics


def check_predictions(folder, count):
    """What the saved preset tags is what the run left."""
    preset = keras_bert.load(folder / "preset")
    rows = json.loads((folder / "predictions.json").read_text(encoding="utf-8"))
    tags = keras_bert.tag(preset, [row["words"] for row in rows])
    assert [list(each.tags) for each in tags] == [row["predicted"] for row in rows]
    assert len(rows) == count
    return preset, rows


def test_a_run(trained, work):
    folder, metrics = trained
    assert metrics["entity_f1"] > 0.5
    assert metrics.keys() >= {"accuracy", "strict_entity_f1", "train_seconds",
                              "examples_per_second", "best_epoch"}  # fmt: skip
    assert metrics["test"].keys() >= {"entity_f1", "accuracy"}
    stored = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    assert stored == metrics
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Entities" in page and "Most confident errors" in page and "seqeval" in page
    # Words in, words out; of the test file, where there's one.
    written = read_tagged_sentences(folder / "predictions.conll", tag_column=2)
    assert [row[:2] for row in written] == [
        row[:2] for row in read_tagged_sentences(work / "test.conll")
    ]
    preset, _ = check_predictions(folder, 6)
    assert preset.labels == ("B-PER", "I-PER", "O")


def test_a_crf_and_a_test_file_of_words(work, tmp_path):
    text = (work / "test.conll").read_text(encoding="utf-8")
    words = "".join(f"{line.partition(chr(9))[0]}\n" for line in text.split("\n"))
    (tmp_path / "words.txt").write_text(words, encoding="utf-8")
    metrics = run("finetune_tagger", **arguments(work, epochs=5, crf=True,
                                                 test_file=tmp_path / "words.txt",
                                                 output_dir=tmp_path / "run"))  # fmt: skip
    assert metrics["entity_f1"] > 0.5 and "test" not in metrics
    preset, rows = check_predictions(tmp_path / "run", 6)
    assert rows[0].keys() == {"line", "words", "predicted"}
    written = read_tagged_sentences(tmp_path / "run" / "predictions.conll")
    assert [list(row.tags) for row in written] == [row["predicted"] for row in rows]
    assert preset.model.get_layer("crf").transitions.shape == (4, 3)
    with pytest.raises(InputError, match="huggingface has no word for a CRF"):
        keras_bert.save(preset, tmp_path / "other", format="huggingface")


def test_parts_of_speech_on_a_trained_head(work, tmp_path, monkeypatch):
    """The head of the same tags goes on, in its order; `--smoke` knows tags of later rows."""
    for name in ("train", "dev"):
        text = (work / f"{name}.conll").read_text(encoding="utf-8")
        text = text.replace("B-PER", "NAME").replace("I-PER", "NAME").replace("\tO", "\tWORD")
        (tmp_path / f"{name}.conll").write_text(f"a\tWORD\n\n{text}", encoding="utf-8")
    monkeypatch.setattr("keras_bert.finetuning.SMOKE_EXAMPLES", 1)
    base = keras_bert.load(work / "base")
    model = keras_bert.tasks.token_classifier(base.encoder, 2)
    base = dataclasses.replace(base, model=model, labels=("WORD", "NAME"))
    keras_bert.save(base, tmp_path / "base")
    metrics = run(
        "finetune_tagger",
        **arguments(work, train_file=tmp_path / "train.conll", dev_file=tmp_path / "dev.conll",
                    checkpoint=tmp_path / "base", learning_rate=0.0),
        output_dir=tmp_path / "run",
        smoke=True,
    )  # fmt: skip
    assert "entity_f1" not in metrics and 0 <= metrics["accuracy"] <= 1
    preset, rows = check_predictions(tmp_path / "run", 1)
    assert preset.labels == ("WORD", "NAME") and rows[0]["tags"] == ["WORD"]
    kept, trained = (each.model.get_layer("labels").get_weights() for each in (base, preset))
    np.testing.assert_array_equal(kept[0], trained[0])
    assert "Tags" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_schemes():
    recipe = load_recipe("finetune_tagger")

    def found(tags):
        rows = [TaggedSentence(("w",) * len(row.split()), tuple(row.split()), 1) for row in tags]
        labels = {tag for row in rows for tag in row.tags}
        scheme = recipe.scheme_of(rows, labels)
        predicted = [recipe.Tagged(list(row.tags), []) for row in rows]
        return scheme, recipe.scores(rows, predicted, scheme)

    assert found(["a b"]) == ("", {"accuracy": 1})
    for tags, strict in ((["B-x I-x O"], True), (["S-x O B-x E-x"], True), (["I-x O", "x"], False),
                         (["I-x I-x B-x O", "I-x"], False)):  # fmt: skip
        scheme, scores = found(tags)
        assert scheme == ("strict" if strict else "entities")
        assert scores["entity_f1"] == 1 and scores.get("strict_entity_f1") == (strict or None)


def test_tags_that_training_has_not(work, tmp_path):
    recipe = load_recipe("finetune_tagger")
    rows = [TaggedSentence(("a", "b"), ("B-x", "O"), 1)]
    with pytest.warns(UserWarning, match=r"dev: 1 tags don't occur .*: B-x 1\.$"):
        recipe.check_tags("dev", rows, ("B-y", "O"))
    with pytest.raises(InputError, match=r"dev: none of its tags occurs .* as 'B-x' doesn't"):
        recipe.check_tags("dev", rows, ("NOUN", "VERB"))


def test_refused_before_training(work, tmp_path):
    (tmp_path / "one.conll").write_text("a\tO\n", encoding="utf-8")
    (tmp_path / "blank.conll").write_text("\u200b\tO\n\u200b\tB-x\n", encoding="utf-8")
    (tmp_path / "bad.conll").write_text("a\tO\nb\n", encoding="utf-8")
    for changes, message in (
        ({"train_file": tmp_path / "one.conll"}, r"one.conll holds one tag only, 'O'"),
        (
            {"train_file": tmp_path / "blank.conll", "dev_file": tmp_path / "blank.conll"},
            r"blank.conll: No sentence holds a word",
        ),
        ({"dev_file": tmp_path / "bad.conll"}, r"bad.conll, line 2: expected 2 columns"),
        ({"tag_column": 7}, r"has 2 columns"),
        ({"max_sequence_length": 64}, r"--max-sequence-length is 64"),
    ):
        with pytest.raises(InputError, match=message):
            run("finetune_tagger", **arguments(work, **changes), output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
