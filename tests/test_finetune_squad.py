"""The recipe for questions as a user runs it, and its preset in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
from test_recipes import run

import keras_bert
from keras_bert.errors import InputError

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS),
              *"中国人的年"]  # fmt: skip


def squad(count, seed, unanswerable=0.0, letters=LETTERS):
    """The answer is the letter "z", wherever it stands; without one there's none."""
    rng = np.random.default_rng(seed)
    paragraphs = []
    for i in range(count):
        words = rng.choice(list(letters[:-1]), rng.integers(5, 40)).tolist()
        answers = []
        if rng.random() >= unanswerable:
            at = int(rng.integers(len(words)))
            words[at] = letters[-1]
            answers = [{"text": letters[-1], "answer_start": 2 * at}]
        entry = {"id": f"q{i}", "question": "where", "answers": answers}
        paragraphs.append({"context": " ".join(words), "qas": [entry]})
    return json.dumps({"data": [{"paragraphs": paragraphs}]}, ensure_ascii=False)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squad")
    for seed, (name, count) in enumerate((("train", 64), ("dev", 16), ("test", 8))):
        (folder / f"{name}.json").write_text(squad(count, seed, 0.3), encoding="utf-8")
    (folder / "chinese.json").write_text(squad(12, 6, letters="中国人的年"), encoding="utf-8")
    keras.utils.set_random_seed(0)
    config = keras_bert.BertConfig(
        vocabulary_size=len(VOCABULARY), num_layers=1, num_heads=2, hidden_dim=32,
        intermediate_dim=64, max_sequence_length=40,
    )  # fmt: skip
    encoder = keras_bert.bert(config)
    preset = keras_bert.Preset(config, encoder, keras_bert.WordPiece(VOCABULARY), encoder)
    keras_bert.save(preset, folder / "base")
    return folder


def arguments(work, **changes):
    return {
        "checkpoint": work / "base",
        "train_file": work / "train.json",
        "dev_file": work / "dev.json",
        "max_sequence_length": 32,
        "stride": 8,
        "batch_size": 8,
        "learning_rate": 1e-2,
    } | changes


@pytest.fixture(scope="module")
def trained(work):
    """A run in float16, where -1e9 is no number: the loss must be one all the same."""
    metrics = run("finetune_squad", **arguments(work, epochs=5, test_file=work / "test.json",
                                                precision="mixed_float16",
                                                output_dir=work / "run"))  # fmt: skip
    yield work / "run", metrics
    keras.config.set_dtype_policy("float32")


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_run(trained, work):
    folder, metrics = trained
    assert keras.config.dtype_policy().name == "float32"
    history = (folder / "history.csv").read_text(encoding="utf-8")
    assert "nan" not in history and "inf" not in history
    assert metrics["answerable_f1"] > 0.5 and metrics["f1"] > metrics["no_answer_share"]
    assert metrics["no_answer_average_precision"] > metrics["no_answer_share"] > 0
    assert metrics.keys() >= {"exact_match", "train_seconds", "examples_per_second"}
    assert metrics["test"].keys() >= {"exact_match", "f1", "answerable_f1"}
    assert read(folder / "metrics.json") == metrics
    settings = keras_bert.load(folder / "preset").settings
    assert settings == {"max_sequence_length": 32, "stride": 8, "max_answer_length": 30,
                        "no_answer_threshold": metrics["no_answer_threshold"]}  # fmt: skip
    contexts = {
        paragraph["qas"][0]["id"]: paragraph["context"]
        for paragraph in read(work / "test.json")["data"][0]["paragraphs"]
    }
    answers, odds = read(folder / "answers.json"), read(folder / "null_odds.json")
    for name, spans in read(folder / "nbest.json").items():
        *spans, nothing = spans
        assert 1 <= len(spans) <= 20 and nothing["text"] == ""
        assert sum(span["probability"] for span in [*spans, nothing]) <= 1 + 1e-9
        for span in spans:
            assert contexts[name][span["start"] : span["end"]] == span["text"]
        silent = odds[name] > metrics["no_answer_threshold"]
        assert answers[name] == ("" if silent else spans[0]["text"])
    assert set(odds) == set(answers) == set(contexts)
    assert "Most confident errors" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_new_process_gives_the_runs_predictions(trained, work):
    folder, _ = trained
    code = """
import json, sys, keras_bert
from keras_bert.data.questions import read_questions
run, test = sys.argv[1:]
rows = read_questions(test)
found = keras_bert.answer(keras_bert.load(run + "/preset"), [row.question for row in rows],
                          [row.context for row in rows])
answers = json.load(open(run + "/answers.json", encoding="utf-8"))
assert {row.id: each.answer for row, each in zip(rows, found)} == answers and len(answers) == 8
"""
    command = [sys.executable, "-c", code, str(folder), str(work / "test.json")]
    subprocess.run(command, check=True)


def test_settings_that_hugging_face_has_no_word_for(trained, tmp_path):
    preset = keras_bert.load(trained[0] / "preset")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        keras_bert.save(preset, tmp_path / "other", format="huggingface")
    names = "stride, max_answer_length, no_answer_threshold"
    [message] = [str(x.message) for x in found if issubclass(x.category, UserWarning)]
    assert f"has no word for the settings {names}:" in message


def test_chinese_and_always_an_answer(work, tmp_path, capsys):
    """And a head that goes on, and a test file without answers."""
    base = keras_bert.load(work / "base")
    model = keras_bert.tasks.span_classifier(base.encoder)
    base = dataclasses.replace(base, model=model)
    keras_bert.save(base, tmp_path / "base")
    asked = read(work / "test.json")
    for paragraph in asked["data"][0]["paragraphs"]:
        del paragraph["qas"][0]["answers"]
    (tmp_path / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
    metrics = run("finetune_squad", **arguments(work, dev_file=work / "chinese.json",
                                                checkpoint=tmp_path / "base", learning_rate=0.0,
                                                test_file=tmp_path / "asked.json"),
                  output_dir=tmp_path / "run", smoke=True)  # fmt: skip
    assert "by the rules of CMRC 2018" in capsys.readouterr().out
    assert 0 <= metrics["f1"] <= 1
    # The dev file's questions have answers all: there's no threshold to tune.
    assert metrics.keys() & {"no_answer_threshold", "no_answer_share"} == set()
    preset = keras_bert.load(tmp_path / "run" / "preset")
    assert "no_answer_threshold" not in preset.settings
    kept, trained = (each.model.get_layer("span").get_weights() for each in (base, preset))
    np.testing.assert_array_equal(kept[0], trained[0])
    answers = read(tmp_path / "run" / "answers.json")
    assert all(answers.values()) and len(answers) == 8 and "test" not in metrics
    rows = read(tmp_path / "run" / "predictions.json")
    assert {row["id"]: row["answer"] for row in rows} == answers
    assert rows[0].keys() == {"id", "question", "answer", "start", "end", "score"}


def test_refused_before_training(work, tmp_path):
    (tmp_path / "bad.json").write_text("{}", encoding="utf-8")
    long = json.loads(squad(1, 0))
    long["data"][0]["paragraphs"][0]["qas"][0]["question"] = "a " * 30
    (tmp_path / "long.json").write_text(json.dumps(long), encoding="utf-8")
    for changes, message in (
        ({"dev_file": tmp_path / "bad.json"}, r"bad.json: expected a field 'data'"),
        ({"train_file": tmp_path / "long.json"}, r"question q0: a question of 30 tokens"),
        ({"dev_file": tmp_path / "long.json"}, r"question q0: a question of 30 tokens"),
        ({"stride": 0}, r"--stride must be at least 1"),
        ({"max_sequence_length": 64}, r"--max-sequence-length is 64"),
    ):
        with pytest.raises(InputError, match=message):
            run("finetune_squad", **arguments(work, **changes), output_dir=tmp_path / "run")
        assert not (tmp_path / "run").exists()
