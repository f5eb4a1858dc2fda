"""`finetune_classifier.py` and `finetune_pairs.py` from files to a preset that predicts alone."""

import json
import os
import random
import subprocess
import sys

import keras
import numpy as np
import pytest
from test_recipes import run

import keras_bert
from keras_bert.errors import InputError
from keras_bert.text_logits import text_logits

pytest.importorskip("tensorflow")

COMMON = ["red", "green", "blue", "old", "new", "house", "a", "the"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *COMMON, "cat", "tree"]
PREDICT = """
import json, sys
import keras_bert
folder, texts = json.loads(sys.stdin.read())
preset = keras_bert.load(folder)
found = [tuple(each) for each in keras_bert.classify(preset, texts)]
print(json.dumps([found, preset.settings]))
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A small encoder without training, and files of three tasks."""
    folder = tmp_path_factory.mktemp("work")
    keras.utils.set_random_seed(0)
    config = keras_bert.BertConfig(
        vocabulary_size=len(VOCABULARY), num_layers=1, num_heads=2, hidden_dim=32,
        intermediate_dim=64, max_sequence_length=32, initializer_range=0.1,
    )  # fmt: skip
    encoder = keras_bert.bert(config)
    tokenizer = keras_bert.WordPiece(VOCABULARY)
    keras_bert.save(keras_bert.Preset(config, encoder, tokenizer, encoder), folder / "base")
    rng = random.Random(0)

    def text(count, *more):
        words = [*(rng.choice(COMMON) for _ in range(count)), *more]
        return " ".join(rng.sample(words, len(words)))

    rows = []
    for _ in range(24):
        for label, word in (("animal", "cat"), ("plant", "tree")):
            rows.append({"label": label, "text": text(rng.randint(1, 6), word)})
    write(folder / "train.jsonl", rows)
    write(folder / "dev.jsonl", rows[:12])
    pairs = [{"sentence1": text(2), "sentence2": text(3), "score": 1000.0 + 50 * (i % 5)}
             for i in range(24)]  # fmt: skip
    write(folder / "pairs.jsonl", pairs)
    write(
        folder / "unlabelled.jsonl", [{k: p[k] for k in ("sentence1", "sentence2")} for p in pairs]
    )
    return folder


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def arguments(work, **changes):
    return {
        "checkpoint": work / "base",
        "train_file": work / "train.jsonl",
        "dev_file": work / "dev.jsonl",
        "max_sequence_length": 16,
        "learning_rate": 3e-3,
        "epochs": 6,
        "batch_size": 8,
    } | changes


def predicted_alone(folder, texts):
    """What a process of its own predicts from the saved preset."""
    result = subprocess.run(
        [sys.executable, "-c", PREDICT],
        input=json.dumps([str(folder), texts]),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(result.stdout.splitlines()[-1])


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_classifier(work, tmp_path):
    """CLS-02, CLS-06: names and probabilities are the run's in a process of its own."""
    folder = tmp_path / "run"
    metrics = run("finetune_classifier", **arguments(work, output_dir=folder))
    assert metrics == read(folder / "metrics.json")
    assert metrics["accuracy"] >= 0.9
    assert metrics["commonest_class_share"] == 0.5
    assert metrics["train_seconds"] > 0
    entries = read(folder / "predictions.json")
    assert [entry["label"] for entry in entries] == ["animal", "plant"] * 6
    texts = [entry["text"] for entry in entries]
    found, settings = predicted_alone(folder / "preset", texts)
    for (label, score, scores), entry in zip(found, entries):
        assert label == entry["prediction"]
        assert score == pytest.approx(entry["score"], abs=1e-6)
        assert scores == pytest.approx(entry["scores"], abs=1e-6)
    assert settings == {"max_sequence_length": 16}
    accuracy = np.mean([entry["label"] == entry["prediction"] for entry in entries])
    assert accuracy == pytest.approx(metrics["accuracy"], abs=1e-4)
    page = (folder / "report.html").read_text(encoding="utf-8")
    for heading in ("Scores by epoch", "Confusions", "Most confident errors", "Arguments"):
        assert heading in page
    table = (folder / "predictions.tsv").read_text(encoding="utf-8").split("\n")
    assert table[0] == "name\ttext\tlabel\tprediction\tscore\tscores"
    assert len(table) == 12 + 2


def test_regression_on_pairs(work, tmp_path):
    """Trained on standardised targets, it predicts the user's numbers; no labels to test on."""
    folder = tmp_path / "run"
    metrics = run(
        "finetune_pairs",
        **arguments(
            work,
            train_file=work / "pairs.jsonl",
            dev_file=work / "pairs.jsonl",
            test_file=work / "unlabelled.jsonl",
            output_dir=folder,
            regression=True,
            symmetric=True,
            epochs=2,
        ),
    )
    assert -1 <= metrics["spearman"] <= 1
    assert "untrained_cosine_spearman" in metrics
    assert "test" not in metrics
    entries = read(folder / "predictions.json")
    assert "label" not in entries[0]
    values = [entry["prediction"] for entry in entries]
    assert 900 < min(values) <= max(values) < 1300
    texts, pairs = ([entry[name] for entry in entries] for name in ("text", "pair"))
    preset = keras_bert.load(folder / "preset")
    np.testing.assert_allclose(text_logits(preset, texts, pairs)[:, 0], values, rtol=1e-6)
    assert preset.settings["symmetric"] is True


def test_refused(work, tmp_path):
    def sentence(name, **changes):
        with pytest.raises(InputError) as caught:
            run(name, **arguments(work, output_dir=tmp_path / "run", **changes))
        assert not (tmp_path / "run").exists()
        return str(caught.value)

    bad = tmp_path / "bad.jsonl"
    write(bad, [{"label": "animal", "text": "a"}, {"label": "stone", "text": "b"}])
    assert "bad.jsonl, line 2: the label 'stone'" in sentence("finetune_classifier", dev_file=bad)
    assert "--labels" not in sentence("finetune_classifier", labels=("animal", "stone"))
    assert "Choose one of --multi-label" in sentence(
        "finetune_classifier", multi_label=True, regression=True
    )
    assert "--metric must be one of" in sentence("finetune_classifier", metric="pearson")
    assert "found no column for the pair" in sentence("finetune_pairs")
    assert "--multiple-choice goes with none" in sentence(
        "finetune_pairs", multiple_choice=True, symmetric=True
    )
