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
from keras_bert.training.callbacks import read_history

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
    several = [{"text": row["text"], "labels": [row["label"], "thing"][i % 3 :]}
               for i, row in enumerate(rows[:24])]  # fmt: skip
    write(folder / "several.jsonl", several)
    choices = [{"context": text(2), "choices": ["cat", "tree"], "label": i % 2} for i in range(12)]
    write(folder / "choices.jsonl", choices)
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
            epochs=1,
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
    assert preset.settings == {"max_sequence_length": 16, "symmetric": True, "pair": True}
    # The losses of training and of the dev file are measured alike.
    history = read_history(folder / "history.csv")
    assert max(history["loss"] + history["val_loss"]) < 20


def test_several_labels_in_mixed_precision(work, tmp_path):
    """The threshold and the predictions are those of the preset, which is in float32."""
    folder = tmp_path / "run"
    several = work / "several.jsonl"
    metrics = run(
        "finetune_classifier",
        **arguments(work, train_file=several, dev_file=several, output_dir=folder, epochs=1,
                    multi_label=True, precision="mixed_bfloat16"),
    )  # fmt: skip
    assert keras.config.dtype_policy().name == "float32"
    preset = keras_bert.load(folder / "preset")
    assert preset.settings["threshold"] == metrics["threshold"]
    entries = read(folder / "predictions.json")
    found = keras_bert.classify(preset, [entry["text"] for entry in entries])
    for entry, each in zip(entries, found):
        assert each.labels == tuple(entry["prediction"])
        assert each.scores == pytest.approx(entry["scores"], abs=1e-6)
    right = [set(entry["label"]) == set(entry["prediction"]) for entry in entries]
    assert metrics["accuracy"] == pytest.approx(np.mean(right), abs=1e-4)


def test_choices(work, tmp_path):
    """From a table to a preset that `classify` takes lists of choices with."""
    folder = tmp_path / "run"
    choices = work / "choices.jsonl"
    metrics = run(
        "finetune_pairs",
        **arguments(work, train_file=choices, dev_file=choices, test_file=choices,
                    output_dir=folder, epochs=1, multiple_choice=True, accumulate=2),
    )  # fmt: skip
    assert metrics["test"]["accuracy"] == metrics["accuracy"]
    preset = keras_bert.load(folder / "preset")
    entries = read(folder / "predictions.json")
    columns = [[entry[name] for entry in entries] for name in ("text", "pair")]
    found = keras_bert.classify(preset, *columns)
    assert [each.label for each in found] == [entry["prediction"] for entry in entries]


def test_refused(work, tmp_path):
    def sentence(name, **changes):
        with pytest.raises(InputError) as caught:
            run(name, **arguments(work, output_dir=tmp_path / "run", **changes))
        assert not (tmp_path / "run").exists()
        return str(caught.value)

    bad = tmp_path / "bad.jsonl"
    write(bad, [{"label": "animal", "text": "a"}, {"label": "stone", "text": "b"}])
    assert "bad.jsonl, line 2: the label 'stone'" in sentence("finetune_classifier", dev_file=bad)
    assert "bad.jsonl, line 2: the label 'stone'" in sentence("finetune_classifier", test_file=bad)
    # Classes are those of the whole file, though few rows are tried.
    assert "bad.jsonl, line 2" in sentence("finetune_classifier", dev_file=bad, smoke=True)
    assert "the label 'plant' isn't among the classes (animal, stone)" in sentence(
        "finetune_classifier", labels=("animal", "stone")
    )
    assert "--label-separator is empty" in sentence(
        "finetune_classifier", multi_label=True, label_separator=""
    )
    assert "it must be at least 5" in sentence("finetune_pairs", max_sequence_length=4)
    assert "--windows must be from 0" in sentence("finetune_classifier", windows=15)
    assert "--task cola has one class a row" in sentence(
        "finetune_classifier", task="cola", regression=True
    )
    assert "--class-weights needs one class" in sentence(
        "finetune_pairs", task="stsb", class_weights=True
    )
    assert "--task rte says what" in sentence("finetune_pairs", task="rte", multiple_choice=True)
    three = tmp_path / "three.jsonl"
    write(three, [{"context": "a", "choices": ["b", "c", "d"], "label": 0}])
    choices = {"train_file": work / "choices.jsonl", "dev_file": work / "choices.jsonl"}
    assert "three.jsonl, line 1: 3 choices, and 2 in the training file" in sentence(
        "finetune_pairs", **choices | {"test_file": three}, multiple_choice=True
    )
    assert "Choose one of --multi-label" in sentence(
        "finetune_classifier", multi_label=True, regression=True
    )
    assert "--metric must be one of" in sentence("finetune_classifier", metric="pearson")
    assert "found no column for the pair" in sentence("finetune_pairs")
    assert "--multiple-choice goes with none" in sentence(
        "finetune_pairs", multiple_choice=True, symmetric=True
    )
