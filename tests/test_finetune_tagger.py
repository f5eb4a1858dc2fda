"""The tagger's recipe as a user runs it, and its preset in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
from test_recipes import run

import keras_bert
from keras_bert.data.tagged_words import read_tagged_sentences
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
    # Words in, words out.
    written = read_tagged_sentences(folder / "predictions.conll", tag_column=2)
    assert [row[:2] for row in written] == [
        row[:2] for row in read_tagged_sentences(work / "dev.conll")
    ]


def test_a_new_process_gives_the_runs_predictions(trained):
    folder, _ = trained
    code = """
import json, sys, keras_bert
preset = keras_bert.load(sys.argv[1] + "/preset")
rows = json.load(open(sys.argv[1] + "/predictions.json", encoding="utf-8"))
tags = keras_bert.tag(preset, [row["words"] for row in rows])
assert [list(each.tags) for each in tags] == [row["predicted"] for row in rows]
assert len(rows) == 12 and preset.labels == ("B-PER", "I-PER", "O")
"""
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)


def test_a_crf(work, tmp_path):
    metrics = run("finetune_tagger", **arguments(work, epochs=5, crf=True,
                                                 output_dir=tmp_path / "run"))  # fmt: skip
    assert metrics["entity_f1"] > 0.5
    preset = keras_bert.load(tmp_path / "run" / "preset")
    rows = json.loads((tmp_path / "run" / "predictions.json").read_text(encoding="utf-8"))
    tags = keras_bert.tag(preset, [row["words"] for row in rows])
    assert [list(each.tags) for each in tags] == [row["predicted"] for row in rows]
    assert preset.model.get_layer("crf").transitions.shape == (4, 3)
    with pytest.raises(InputError, match="huggingface has no word for a CRF"):
        keras_bert.save(preset, tmp_path / "other", format="huggingface")


def test_parts_of_speech(work, tmp_path):
    for name in ("train", "dev"):
        text = (work / f"{name}.conll").read_text(encoding="utf-8")
        text = text.replace("B-PER", "NAME").replace("I-PER", "NAME").replace("\tO", "\tWORD")
        (tmp_path / f"{name}.conll").write_text(text, encoding="utf-8")
    metrics = run(
        "finetune_tagger",
        **arguments(work, train_file=tmp_path / "train.conll", dev_file=tmp_path / "dev.conll"),
        output_dir=tmp_path / "run",
        smoke=True,
    )
    assert "entity_f1" not in metrics and 0 < metrics["accuracy"] <= 1
    rows = json.loads((tmp_path / "run" / "predictions.json").read_text(encoding="utf-8"))
    assert len(rows) == 12 and all(len(row["words"]) == len(row["predicted"]) for row in rows)
    assert "Tags" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_refused_before_training(work, tmp_path):
    (tmp_path / "one.conll").write_text("a\tO\n", encoding="utf-8")
    (tmp_path / "bad.conll").write_text("a\tO\nb\n", encoding="utf-8")
    for changes, message in (
        ({"train_file": tmp_path / "one.conll"}, r"one.conll holds one tag only, 'O'"),
        ({"dev_file": tmp_path / "bad.conll"}, r"bad.conll, line 2: expected 2 columns"),
        ({"tag_column": 7}, r"has 2 columns"),
        ({"max_sequence_length": 64}, r"--max-sequence-length is 64"),
    ):
        with pytest.raises(InputError, match=message):
            run("finetune_tagger", **arguments(work, **changes), output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
