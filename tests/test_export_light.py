"""Light forms of an export: bfloat16 and int8 SavedModels, and LiteRT files."""

from __future__ import annotations

import collections
import dataclasses
import gc
import json
import os

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("an export is made on TensorFlow", allow_module_level=True)

import tensorflow as tf
from serving.runner import Runner
from test_export import FEW_WORDS, LABELS, LONGEST, MASKED, TEXTS, agree, asked, make  # noqa: F401
from test_recipes import run
from test_serving import program  # noqa: F401

import keras_bert
from keras_bert.errors import InputError
from keras_bert.export import ExportError, light, litert, saved_model, self_check
from keras_bert.export.expected import expected
from keras_bert.export.signatures import DESCRIPTION

THREE = {"num_classes": 3}


@pytest.fixture
def here(monkeypatch):
    """The check of an export asks it in this process; the slow test starts another."""

    def answers(folder, requests):
        model = tf.saved_model.load(str(folder))
        return [asked(model.signatures[name], **inputs) for name, inputs in requests]

    monkeypatch.setattr(self_check, "_answers", answers)


@pytest.fixture
def classifier(make):  # noqa: F811
    return make("text_classifier", LABELS, THREE)


def sizes(folder):
    """Elements of the folder's checkpoint by dtype."""
    reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
    counts = collections.Counter()
    for name, dtype in reader.get_variable_to_dtype_map().items():
        counts[dtype.name] += int(np.prod(reader.get_variable_to_shape_map()[name]))
    return counts


def test_bfloat16(classifier, here, tmp_path):
    folder = keras_bert.export_saved_model(classifier, tmp_path / "a", precision="bfloat16")
    description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    assert description["precision"] == "bfloat16"
    assert 0 < description["states_error"] < 0.05
    assert 0 < description["largest_difference"] < 0.1
    head = sum(int(np.prod(x.shape)) for x in classifier.model.get_layer("label").weights)
    counts = sizes(folder)
    assert counts["float32"] == head
    assert counts["bfloat16"] == classifier.encoder.count_params()

    exported = keras_bert.load_saved_model(folder)
    theirs = expected(classifier, "text_classifier", TEXTS)
    ours = asked(exported.signatures["text"], text=TEXTS)
    assert {name: x.dtype for name, x in ours.items()} == {n: x.dtype for n, x in theirs.items()}
    np.testing.assert_allclose(ours["scores"], theirs["scores"], rtol=0, atol=0.1)
    assert np.mean(ours["label"] == theirs["label"]) > 0.9
    assert all(x.dtype == "float32" for x in classifier.encoder.weights)


def test_int8(classifier, here, tmp_path):
    """By the recipe, with a LiteRT file."""
    keras_bert.save(classifier, tmp_path / "preset")
    paths = {"checkpoint": tmp_path / "preset", "output_dir": tmp_path / "topics"}
    for arguments, message in (
        ({"precision": "int4"}, "--precision must be one of float32, bfloat16, int8: int4"),
        ({"precision": "bfloat16", "litert": True}, "leave --litert or bfloat16 out"),
    ):
        with pytest.raises(InputError, match=message):
            run("export", **paths, **arguments)
    metrics = run("export", **paths, precision="int8", litert=True)
    folder = tmp_path / "topics" / "1"
    described = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    assert described["precision"] == "int8" and described["states_error"] == metrics["states_error"]
    assert 0 < metrics["states_error"] < 0.1 and 0 < metrics["largest_difference"] < 0.1
    assert metrics["litert"] == str(tmp_path / "topics" / "topics.tflite")
    assert sorted(os.listdir(folder.parent)) == ["1", "args.json", "topics.tflite"]

    matrices = [x for x in classifier.encoder.weights if light.summed_axis(x.path) is not None]
    elements = sum(int(np.prod(x.shape)) for x in matrices)
    scales = sum(x.shape[1 - light.summed_axis(x.path)] for x in matrices)
    counts = sizes(folder)
    assert len(matrices) == 8  # six of the block, the pooler's and the token table
    assert counts["int8"] == elements
    assert counts["float32"] == classifier.model.count_params() - elements + scales

    theirs = light.light_preset(classifier, "int8")
    loaded = [keras_bert.load_saved_model(folder) for _ in range(2)]
    wanted = keras_bert.classify(theirs, FEW_WORDS)
    agree(loaded[0](FEW_WORDS), wanted)
    del loaded[0]
    gc.collect()
    agree(loaded[0](FEW_WORDS), wanted)  # each has weights of its own
    differences = [
        abs(one.score - other.score)
        for one, other in zip(wanted, keras_bert.classify(classifier, FEW_WORDS))
        if one.label == other.label
    ]
    assert len(differences) > 0.9 * len(wanted) and 0 < max(differences) < 0.1


@pytest.mark.parametrize(
    ("precision", "task", "labels", "arguments", "settings"),
    [
        ("bfloat16", "token_classifier", LABELS, THREE, {}),
        ("bfloat16", "span_classifier", (), {}, {"no_answer_threshold": 0.1}),
        ("bfloat16", "masked_lm", (), {}, {"max_sequence_length": 60}),
        ("int8", "encoder", (), {}, {"pooling": "max"}),
    ],
)
def test_other_tasks(make, precision, task, labels, arguments, settings):  # noqa: F811
    """Names and dtypes are float32's, and so nearly are the values."""
    preset = make(task, labels, arguments, **settings)
    form = "question_context" if task == "span_classifier" else "text"
    texts = MASKED if task == "masked_lm" else FEW_WORDS[-10:]
    columns = {"question": ["who?"] * len(texts), "context": texts}
    columns = columns if task == "span_classifier" else {"text": texts}
    exact, found = (
        asked(saved_model._traced(saved_model.signatures(each)[form]), **columns)
        for each in (preset, light.light_preset(preset, precision))
    )
    assert {name: x.dtype for name, x in found.items()} == {n: x.dtype for n, x in exact.items()}
    for name, values in found.items():
        assert values.shape == exact[name].shape
        if values.dtype == np.float32:
            assert np.mean(np.abs(values - exact[name])) < 0.05
        elif name in ("tags", "answer"):
            assert np.mean(values == exact[name]) > 0.9


def test_quantized():
    draw = np.random.default_rng(0)
    matrix = draw.normal(size=(40, 30)).astype(np.float32) * np.geomspace(1e-30, 1e30, 30)
    matrix = matrix.astype(np.float32)
    matrix[:, 7] = 0
    for axis in (0, 1):
        values, scales = light.quantized(matrix, axis)
        assert values.dtype == np.int8 and scales.dtype == np.float32
        assert scales.shape == ((1, 30) if axis == 0 else (40, 1))
        found = light.dequantized(values, scales).numpy()
        assert found.dtype == np.float32
        assert (np.abs(found - matrix) <= 0.501 * scales).all()
        assert not found[:, 7].any()
    assert (np.abs(light.quantized(matrix, 1)[0]).max(axis=1) == 127).all()


def test_what_has_no_light_form(make, classifier, tmp_path, monkeypatch):  # noqa: F811
    with pytest.raises(ValueError, match=r"`precision` must be one of .*\. Received: precision=8"):
        keras_bert.export_saved_model(classifier, tmp_path / "a", precision=8)
    inputs = dict(classifier.encoder.input)
    x = keras.layers.Dense(3, name="label")(classifier.encoder.output["pooled_output"])
    own = keras.Model(inputs, {"label": x}, name="text_classifier")
    with pytest.raises(InputError, match="no light form: its model is one of its own"):
        keras_bert.export_saved_model(dataclasses.replace(classifier, model=own), tmp_path, "int8")
    other = dataclasses.replace(classifier.config, num_layers=2)
    with pytest.raises(InputError, match="no light form: its weights aren't those of a model"):
        light.light_preset(dataclasses.replace(classifier, config=other), "int8")
    monkeypatch.setattr(saved_model, "FARTHEST", 1e-4)
    with pytest.raises(ExportError, match=r"states are off by [0-9]+% of their length in this pr"):
        keras_bert.export_saved_model(classifier, tmp_path / "a", precision="int8")
    assert not (tmp_path / "a").exists() or not os.listdir(tmp_path / "a")


# LiteRT.


def ask(path, preset, texts, length):
    """Each text's outputs, one by one."""
    runner = litert.interpreter(path.read_bytes()).get_signature_runner()
    for text in texts:
        encoding = preset.tokenizer.encode(text, max_length=length)
        row = {name: np.zeros((1, length), np.int32) for name in litert.IDS}
        size = len(encoding.token_ids)
        row["token_ids"][0, :size] = encoding.token_ids
        row["segment_ids"][0, :size] = encoding.segment_ids
        row["padding_mask"][0, :size] = 1
        yield {name: x[0] for name, x in runner(**row).items()}


def test_litert(make, tmp_path):  # noqa: F811
    classifier = make("text_classifier", LABELS, THREE)
    encoder = make("encoder")
    path = tmp_path / "new" / "topics.tflite"
    found = keras_bert.export.export_litert(classifier, path)
    assert 0 < found["error"] < 1e-5 and os.listdir(path.parent) == ["topics.tflite"]
    logits = np.stack([row["label"] for row in ask(path, classifier, FEW_WORDS, LONGEST)])
    scores = keras.ops.softmax(logits).numpy()
    agree(scores, expected(classifier, "text_classifier", FEW_WORDS)["scores"])

    keras_bert.export.export_litert(encoder, path, length=20)  # takes the old one's place
    vectors = np.stack([row["embedding"] for row in ask(path, encoder, ["good hello", "好"], 20)])
    agree(vectors, keras_bert.embed(encoder, ["good hello", "好"]))
    assert os.listdir(path.parent) == ["topics.tflite"]


def test_quantized_litert(tmp_path):
    """LiteRT quantizes matrices of 1,024 elements and more."""
    keras.utils.set_random_seed(0)
    config = keras_bert.BertConfig(
        vocabulary_size=200, num_layers=1, num_heads=2, hidden_dim=64, intermediate_dim=128,
        max_sequence_length=32, initializer_range=0.2,
    )  # fmt: skip
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "hello", "."]
    encoder = keras_bert.bert(config)
    preset = keras_bert.Preset(config, encoder, keras_bert.WordPiece(vocabulary), encoder)
    exact = keras_bert.export.export_litert(preset, tmp_path / "a.tflite")
    found = keras_bert.export.export_litert(preset, tmp_path / "b.tflite", quantize="int8")
    assert exact["error"] < 1e-5 < found["error"] < 0.1
    sizes = [(tmp_path / name).stat().st_size for name in ("a.tflite", "b.tflite")]
    assert sizes[1] < 0.6 * sizes[0]


@pytest.mark.parametrize(
    ("task", "arguments"),
    [("token_classifier", THREE | {"crf": True}), ("span_classifier", {}), ("masked_lm", {})],
)
def test_litert_of_other_tasks(make, tmp_path, task, arguments):  # noqa: F811
    preset = make(task, (), arguments)
    assert keras_bert.export.export_litert(preset, tmp_path / "a.tflite")["error"] < 1e-5


def test_refused_litert(make, tmp_path, monkeypatch):  # noqa: F811
    encoder = make("encoder")
    for path, arguments, message in (
        ("a.lite", {}, r"`path` must end in \.tflite"),
        ("a.tflite", {"quantize": "int4"}, '`quantize` must be None or "int8".*int4'),
        ("a.tflite", {"length": 65}, "`length` must be from 3 to 64.*length=65"),
        ("a.tflite", {"length": 2}, "`length` must be from 3 to 64.*length=2"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_bert.export.export_litert(encoder, tmp_path / path, **arguments)
    with pytest.raises(InputError, match="next_sentence can't be exported"):
        keras_bert.export.export_litert(make("next_sentence"), tmp_path / "a.tflite")
    monkeypatch.setattr(litert, "TOLERANCES", {None: 0.0})
    with pytest.raises(ExportError, match=r"outputs are off by .* of their length"):
        keras_bert.export.export_litert(encoder, tmp_path / "a.tflite")
    assert not os.listdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_in_other_processes(classifier, program, tmp_path, precision):  # noqa: F811
    """Python's loader is the check's; the other is C's, which TensorFlow Serving has."""
    folder = keras_bert.export_saved_model(classifier, tmp_path / "a", precision=precision)
    model = tf.saved_model.load(str(folder))
    with Runner(program, folder) as runner:
        for texts in (["Hello, good worlds!", "", "好 人", "in " * 40], ["an"]):
            ours = runner.run("text", {"text": texts})
            agree(ours, asked(model.signatures["text"], text=texts))
