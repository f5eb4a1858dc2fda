"""The preset's folder: what goes in comes out, and a damaged one is refused by name."""

from __future__ import annotations

import dataclasses
import json

import h5py
import keras
import numpy as np
import pytest

import keras_bert
from keras_bert.errors import InputError

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", "good"]
TINY = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
INPUTS = {
    "token_ids": np.array([[2, 5, 6, 3]], "int32"),
    "segment_ids": np.zeros((1, 4), "int32"),
    "padding_mask": np.ones((1, 4), "int32"),
}


@pytest.fixture
def classifier():
    config = keras_bert.BertConfig(
        vocabulary_size=9, norm_epsilon=1e-7, activation="gelu_tanh", **TINY
    )
    encoder = keras_bert.bert(config)
    model = keras_bert.tasks.text_classifier(encoder, 2, dropout=0.4)
    tokenizer = keras_bert.WordPiece(VOCABULARY, lowercase=False)
    return keras_bert.Preset(
        config, encoder, tokenizer, model, ("不好", "good"), {"max_sequence_length": 12}
    )


def test_classifier_round_trip(classifier, tmp_path):
    keras_bert.save(classifier, tmp_path / "preset")
    again = keras_bert.load(tmp_path / "preset")
    assert again.config == classifier.config
    assert again.labels == classifier.labels
    assert again.settings == classifier.settings
    assert again.tokenizer.get_config() == classifier.tokenizer.get_config()
    assert again.tokenizer.vocabulary == VOCABULARY
    assert again.model.get_layer("label_dropout").rate == 0.4
    for name, output in classifier.model.predict(INPUTS, verbose=0).items():
        np.testing.assert_array_equal(again.model.predict(INPUTS, verbose=0)[name], output)
    pooled = again.encoder.predict(INPUTS, verbose=0)["pooled_output"]
    np.testing.assert_array_equal(
        pooled, classifier.encoder.predict(INPUTS, verbose=0)["pooled_output"]
    )


@pytest.mark.parametrize(
    "task",
    [
        "encoder",
        "pretraining",
        "masked_lm",
        "next_sentence",
        "token_classifier",
        "span_classifier",
        "multiple_choice",
    ],
)
def test_other_tasks_round_trip(classifier, tmp_path, task):
    model = classifier.encoder
    if task != "encoder":
        arguments = {"num_classes": 3} if task == "token_classifier" else {}
        model = getattr(keras_bert.tasks, task)(classifier.encoder, **arguments)
    keras_bert.save(dataclasses.replace(classifier, model=model, labels=()), tmp_path / "preset")
    again = keras_bert.load(tmp_path / "preset").model
    assert [weight.path for weight in again.weights] == [weight.path for weight in model.weights]
    for ours, theirs in zip(again.weights, model.weights):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(ours.value), keras.ops.convert_to_numpy(theirs.value)
        )


def test_a_preset_is_replaced_and_nothing_else_is(classifier, tmp_path):
    keras_bert.save(classifier, tmp_path / "preset")
    keras_bert.save(classifier, tmp_path / "preset")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["preset"]
    (tmp_path / "preset" / "thesis.txt").touch()
    with pytest.raises(InputError, match="preset exists and isn't a preset"):
        keras_bert.save(classifier, tmp_path / "preset")
    (tmp_path / "empty").mkdir()
    keras_bert.save(classifier, tmp_path / "empty")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file exists and isn't a preset"):
        keras_bert.save(classifier, tmp_path / "file")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("Dear", encoding="utf-8")
    with pytest.raises(InputError, match="letters exists and isn't a preset"):
        keras_bert.save(classifier, tmp_path / "letters")
    assert (tmp_path / "letters" / "dear.txt").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", r"has no config\.json"),
        ("vocab.txt", r"has no vocab\.txt"),
        ("weights.h5", r"isn't a checkpoint: it holds neither weights\.h5"),
    ],
)
def test_missing_file(classifier, tmp_path, name, message):
    keras_bert.save(classifier, tmp_path / "preset")
    (tmp_path / "preset" / name).unlink()
    with pytest.raises(InputError, match=message):
        keras_bert.load(tmp_path / "preset")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["config"].update(hidden_size=16), "hidden_size"),
        (lambda d: d["config"].update(num_heads=3), "num_heads=3"),
        (lambda d: d["config"].update(activation={"class_name": "Dense"}), "must be a name"),
        (lambda d: d["config"].update(activation="nope"), "nope"),
        (lambda d: d["config"].update(vocabulary_size=5), "holds 9 tokens"),
        (lambda d: d["tokenizer"].update(colour="red"), "colour"),
        (lambda d: d["task"].update(name="Lambda"), "Lambda"),
        (lambda d: d["task"]["arguments"].update(code="1"), "code"),
        (lambda d: d.update(labels=["one"]), "1 labels for 2 classes"),
        (lambda d: d.update(architecture="gpt"), "gpt"),
        (lambda d: d.update(format=99), "format 99"),
        (lambda d: d.update(labels="ab"), "labels must be a list"),
        (lambda d: d["config"].update(norm_epsilon=-1), "norm_epsilon=-1"),
        (lambda d: d["settings"].update(max_sequence_length="32"), "max_sequence_length='32'"),
        (lambda d: d.update(vocabulary_hash="0"), "isn't the vocabulary"),
        (lambda d: d.pop("settings"), "settings"),
    ],
)
def test_contradictions_are_named(classifier, tmp_path, change, message):
    keras_bert.save(classifier, tmp_path / "preset")
    path = tmp_path / "preset" / "config.json"
    described = json.loads(path.read_text(encoding="utf-8"))
    change(described)
    path.write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(InputError, match=rf"config\.json.*{message}"):
        keras_bert.load(tmp_path / "preset")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.__delitem__("pooler/bias"), "lacks weight pooler/bias"),
        (lambda f: f.create_dataset("extra", data=[1.0]), "unexpected weight extra"),
        (
            lambda f: (f.__delitem__("label/bias"), f.create_dataset("label/bias", data=[1.0])),
            r"label/bias must be floats of the shape \(2,\)",
        ),
    ],
    ids=["missing", "unexpected", "shape"],
)
def test_wrong_weights_are_named(classifier, tmp_path, change, message):
    keras_bert.save(classifier, tmp_path / "preset")
    with h5py.File(tmp_path / "preset" / "weights.h5", "r+") as file:
        change(file)
    with pytest.raises(InputError, match=message):
        keras_bert.load(tmp_path / "preset")


def test_damaged_weights(classifier, tmp_path):
    keras_bert.save(classifier, tmp_path / "preset")
    path = tmp_path / "preset" / "weights.h5"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match=r"weights\.h5 is damaged"):
        keras_bert.load(tmp_path / "preset")


@pytest.mark.parametrize("format", ["preset", "huggingface", "google"])
def test_formats_are_told_by_their_files(classifier, tmp_path, format):
    if format == "google":
        pytest.importorskip("tensorflow")
        config = dataclasses.replace(classifier.config, norm_epsilon=1e-12)
        encoder = keras_bert.bert(config)
        model = keras_bert.tasks.text_classifier(encoder, 2)
        classifier = dataclasses.replace(classifier, config=config, encoder=encoder, model=model)
    keras_bert.save(classifier, tmp_path / "a", format=format)
    assert keras_bert.checkpoints.format_of(tmp_path / "a") == format
    again = keras_bert.load(tmp_path / "a")
    assert again.config == classifier.config
    assert again.labels == classifier.labels
    for ours, theirs in zip(again.model.weights, classifier.model.weights):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(ours.value), keras.ops.convert_to_numpy(theirs.value)
        )


def test_no_checkpoint_at_all(classifier, tmp_path):
    with pytest.raises(InputError, match="isn't a checkpoint"):
        keras_bert.load(tmp_path)
    with pytest.raises(InputError, match="isn't a folder"):
        keras_bert.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="format='onnx'"):
        keras_bert.save(classifier, tmp_path / "a", format="onnx")


@pytest.fixture
def small():
    """A preset of two classes."""
    tokenizer = keras_bert.WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    config = keras_bert.BertConfig.of_size(
        "tiny", vocabulary_size=6, num_layers=1, hidden_dim=8, num_heads=2, intermediate_dim=8
    )
    encoder = keras_bert.bert(config)
    model = keras_bert.tasks.text_classifier(encoder, 2)
    return keras_bert.Preset(config, encoder, tokenizer, model, ("no", "yes"))


@pytest.mark.parametrize("format", ["preset", "huggingface"])
def test_numbers_that_are_none_are_refused(small, tmp_path, format):
    small.model.get_layer("label").bias.assign([float("nan"), 0.0])
    keras_bert.save(small, tmp_path / "a", format)
    with pytest.raises(InputError, match=r"(label|classifier).*no finite number"):
        keras_bert.load(tmp_path / "a")


def test_a_difference_of_nan_is_nan(small):
    other = keras.models.clone_model(small.model)
    other.set_weights([np.full(w.shape, np.nan, "float32") for w in small.model.get_weights()])
    assert np.isnan(keras_bert.checkpoints.max_difference(small.model, other))


def test_what_a_kill_left_is_put_back(small, tmp_path):
    """Between the two renames there's only the old folder, under a name of the killed process."""
    keras_bert.save(small, tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / ".a.999999999.old")
    (tmp_path / ".a.999999999.unfinished").mkdir()
    bad = dataclasses.replace(small, settings={"max_sequence_length": 8, "value": {1, 2}})
    with pytest.raises(TypeError):
        keras_bert.save(bad, tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert keras_bert.load(tmp_path / "a").labels == small.labels


def test_a_link_stays_a_link(small, tmp_path):
    keras_bert.save(small, tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    keras_bert.save(dataclasses.replace(small, labels=("n", "y")), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert keras_bert.load(tmp_path / "real").labels == ("n", "y")


@pytest.mark.parametrize("format", ["preset", "huggingface", "google", "keras_hub"])
def test_a_folder_of_the_users_own_stays(small, tmp_path, format):
    (tmp_path / "site").mkdir()
    for name in ("README.md", "vocab.txt", "config.json"):
        (tmp_path / "site" / name).write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="choose another"):
        keras_bert.save(small, tmp_path / "site", format)
    assert len(list((tmp_path / "site").iterdir())) == 3


def test_presets_that_contradict_themselves(small):
    for wrong in (
        {"labels": ("one",)},
        {"labels": (1, 2)},
        {"settings": {"max_sequence_length": 2}},
    ):
        with pytest.raises(ValueError, match=r"labels|max_sequence_length"):
            dataclasses.replace(small, **wrong)
    for wrong in ({"lowercase": "false"}, {"max_chars_per_word": 1.5}, {"strip_accents": "no"}):
        with pytest.raises(ValueError, match="must be"):
            keras_bert.WordPiece(small.tokenizer.vocabulary, **wrong)
    with pytest.raises(InputError, match="token 6 must be a line of text"):
        keras_bert.WordPiece([*small.tokenizer.vocabulary, "a\nb"])
