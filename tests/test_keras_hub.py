"""KerasHub's presets: of its own making, read; of ours, loaded by it; damaged ones, refused."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import warnings

import h5py
import keras
import numpy as np
import pytest

import keras_bert
from keras_bert.checkpoints import format_of, keras_hub, load_with_report
from keras_bert.errors import InputError

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", "good"]
NUMBERS = {
    "vocabulary_size": 12, "num_layers": 2, "num_heads": 2, "hidden_dim": 8,
    "intermediate_dim": 16, "max_sequence_length": 10, "num_segments": 2, "dropout": 0.2,
}  # fmt: skip
INPUTS = {
    "token_ids": np.array([[2, 5, 7, 3, 6, 3], [2, 8, 3, 0, 0, 0]], "int32"),
    "segment_ids": np.array([[0, 0, 0, 0, 1, 1], [0] * 6], "int32"),
    "padding_mask": np.array([[1] * 6, [1, 1, 1, 0, 0, 0]], "int32"),
}
POSITIONS = {"mask_positions": np.array([[1, 4], [0, 1]], "int32")}
TASKS = ["encoder", "text_classifier", "masked_lm"]
QUERY = "layers/transformer_encoder/_self_attention_layer/query_dense"
# KerasHub makes an optimizer of its own when it loads a task, and finds none in our file.
pytestmark = pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")


@pytest.fixture(scope="module")
def hub():
    """KerasHub's models."""
    return pytest.importorskip("keras_hub", reason="keras-hub isn't installed").models


def randomise(model):
    """Gives every weight, biases and norms too, a value that matters."""
    rng = np.random.default_rng(1)
    for weight in model.weights:
        center = 1.0 if weight.path.endswith("gamma") else 0.0
        weight.assign(rng.normal(center, 0.3, weight.shape))
    return model


def make_theirs(hub, folder, task, **arguments):
    """A preset that KerasHub saves, and its outputs."""
    tokenizer = hub.BertTokenizer(VOCABULARY, lowercase=True)
    backbone = randomise(hub.BertBackbone(**NUMBERS))
    if task == "encoder":
        backbone.save_to_preset(folder)
        tokenizer.save_to_preset(folder)
        return numpy(backbone(INPUTS))
    if task == "masked_lm":
        model_class, preprocessor_class = hub.BertMaskedLM, hub.BertMaskedLMPreprocessor
    else:
        model_class = hub.BertTextClassifier
        preprocessor_class = hub.BertTextClassifierPreprocessor
        arguments = {"num_classes": 3} | arguments
    preprocessor = preprocessor_class(tokenizer, sequence_length=9)
    model = model_class(backbone, preprocessor=preprocessor, **arguments)
    randomise(model).save_to_preset(folder)
    name = {"text_classifier": "label", "masked_lm": "masked_lm"}[task]
    return numpy({name: model(INPUTS | (POSITIONS if task == "masked_lm" else {}))})


def make_ours(task, **numbers):
    """A preset of ours, with the erf GELU unless `numbers` say otherwise."""
    config = keras_bert.BertConfig(**(NUMBERS | {"attention_dropout": 0.2} | numbers))
    encoder = keras_bert.bert(config)
    classes = (3,) if task in ("text_classifier", "token_classifier") else ()
    model = encoder if task == "encoder" else getattr(keras_bert.tasks, task)(encoder, *classes)
    randomise(encoder)
    randomise(model)
    tokenizer = keras_bert.WordPiece(VOCABULARY, lowercase=True, strip_accents=False)
    labels = ("bad", "so-so", "good") if classes else ()
    settings = {"max_sequence_length": 9}
    return keras_bert.Preset(config, encoder, tokenizer, model, labels, settings)


def numpy(outputs):
    return {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}


def outputs_of(model):
    inputs = INPUTS | POSITIONS
    return numpy(model({name: inputs[name] for name in model.input}))


def weights_of(preset):
    return {w.path: w for model in (preset.encoder, preset.model) for w in model.weights}


def check_same_weights(ours, theirs):
    ours, theirs = numpy(weights_of(ours)), numpy(weights_of(theirs))
    assert list(ours) == list(theirs)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def check_same_outputs(ours, theirs, tolerance=1e-5):
    assert set(ours) == set(theirs)
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], tolerance, tolerance, err_msg=name)


def save(preset, folder):
    """Saves what KerasHub computes otherwise, without the warning that says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keras_bert.save(preset, folder, format="keras_hub")
    return folder


def change_json(path, **changes):
    described = json.loads(path.read_text(encoding="utf-8"))
    described.update(changes)
    path.write_text(json.dumps(described), encoding="utf-8")


def change_config(path, **changes):
    config = json.loads(path.read_text(encoding="utf-8"))["config"]
    change_json(path, config=config | changes)


@pytest.mark.parametrize("task", TASKS)
def test_reads_what_keras_hub_wrote(hub, tmp_path, task):
    theirs = make_theirs(hub, tmp_path / "theirs", task)
    assert format_of(tmp_path / "theirs") == "keras_hub"
    preset, report = load_with_report(tmp_path / "theirs")
    check_same_outputs(outputs_of(preset.model), theirs)

    stored = []
    for path in (tmp_path / "theirs").glob("*.h5"):
        with h5py.File(path) as file:
            file.visititems(
                lambda name, item, path=path: (
                    stored.append(f"{path.name}/{name}") if isinstance(item, h5py.Dataset) else None
                )
            )
    assert sorted(report.read) == sorted(stored)
    assert set(report.assigned) == set(weights_of(preset))
    assert set(report.dropped.values()) <= {"an optimizer's"}
    assert not (report.kept or report.missing or report.unexpected)

    assert preset.config == keras_bert.BertConfig(
        **NUMBERS, attention_dropout=0.2, activation="gelu_tanh", norm_epsilon=1e-12
    )
    assert preset.labels == (("0", "1", "2") if task == "text_classifier" else ())
    assert preset.settings == ({} if task == "encoder" else {"max_sequence_length": 9})
    assert preset.tokenizer.get_config() == {
        "lowercase": True, "strip_accents": False, "split_cjk": True, "max_chars_per_word": 100,
    }  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_keras_hub_loads_what_we_wrote(hub, tmp_path, task):
    preset = make_ours(task)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        keras_bert.save(preset, tmp_path / "ours", format="keras_hub")
    (warning,) = [each for each in caught if each.category is UserWarning]
    assert "the blocks' activation is gelu_tanh, and here gelu" in str(warning.message)
    assert warning.filename == __file__  # whoever called `save`
    assert "_feedforward_intermediate_dense" in (tmp_path / "ours/README.md").read_text("utf-8")

    classes = {"encoder": "BertBackbone", **keras_hub.TASKS}
    theirs = getattr(hub, classes[task]).from_preset(str(tmp_path / "ours"))
    backbone = theirs if task == "encoder" else theirs.backbone
    for layer in backbone.transformer_layers:
        layer._feedforward_intermediate_dense.activation = keras.activations.gelu
    inputs = INPUTS | (POSITIONS if task == "masked_lm" else {})
    if task == "masked_lm":
        theirs.masked_lm_head._intermediate_layer_norm.epsilon = 1e-12
    outputs = theirs(inputs)
    name = {"text_classifier": "label", "masked_lm": "masked_lm"}.get(task)
    check_same_outputs(outputs_of(preset.model), numpy({name: outputs} if name else outputs))

    tokenizer = hub.BertTokenizer.from_preset(str(tmp_path / "ours"))
    text = "Hello worlds, good"
    assert list(map(int, tokenizer(text))) == preset.tokenizer(text)
    if task != "encoder":
        assert theirs.preprocessor.sequence_length == 9
        tokens = theirs.preprocessor.tokenizer("good world")
        assert list(map(int, tokens)) == preset.tokenizer("good world")

    theirs.save_to_preset(tmp_path / "again")
    tokenizer.save_to_preset(tmp_path / "again")
    again = keras_bert.load(tmp_path / "again")
    check_same_weights(again, preset)
    assert again.config.activation == "gelu_tanh"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_there_and_back(tmp_path, task, activation):
    source = make_ours(task, activation=activation, initializer_range=0.05, attention_dropout=0.1)
    again = keras_bert.load(save(source, tmp_path / "a"))
    check_same_weights(again, source)
    check_same_outputs(outputs_of(again.model), outputs_of(source.model), 0)
    assert (again.config, again.labels, again.settings) == (
        source.config, source.labels, source.settings)  # fmt: skip
    assert again.tokenizer.get_config() == source.tokenizer.get_config()
    assert again.tokenizer.vocabulary == source.tokenizer.vocabulary
    save(again, tmp_path / "a")  # an older one is replaced
    check_same_weights(keras_bert.load(tmp_path / "a"), source)


def test_differences_are_said(tmp_path):
    same = make_ours("text_classifier", activation="gelu_tanh")
    assert keras_hub.differences(same) == []
    keras_bert.save(same, tmp_path / "same", format="keras_hub")  # warnings are errors here
    assert not (tmp_path / "same/README.md").exists()
    other = make_ours("masked_lm", norm_epsilon=1e-6, attention_dropout=0.0)
    sentences = keras_hub.differences(other)
    assert [s.split(": after")[0].removeprefix("In KerasHub, ") for s in sentences] == [
        "the blocks' activation is gelu_tanh, and here gelu",
        "the encoder's layer norm epsilon is 1e-12, and here 1e-06",
        "the attention's dropout, in training, is 0.2, and here 0.0",
        "the masked-LM head's layer norm epsilon is 1e-05, and here 1e-06",
    ]


def test_a_head_with_numbers_of_its_own(tmp_path):
    save(make_ours("masked_lm", activation="gelu_tanh"), tmp_path / "ours")
    change_json(tmp_path / "ours/config.json", keras_bert={})  # as KerasHub writes it
    preset = keras_bert.load(tmp_path / "ours")
    head = preset.model.get_layer("masked_lm_head")
    assert head.get_config()["activation"] == "gelu"
    assert head.norm_epsilon == head.norm.epsilon == 1e-5
    assert keras_hub.differences(preset) == []
    for format in ("huggingface", "google"):
        with pytest.raises(InputError, match=f"the format {format} has no word for it"):
            keras_bert.save(preset, tmp_path / "b", format=format)


@pytest.mark.parametrize("task", ["pretraining", "next_sentence", "token_classifier",
                                  "span_classifier", "multiple_choice"])  # fmt: skip
def test_heads_that_keras_hub_lacks(tmp_path, task):
    preset = make_ours(task)
    with pytest.raises(InputError, match=f"KerasHub has no {task} of BertConfig: save the encoder"):
        keras_bert.save(preset, tmp_path / "a", format="keras_hub")
    assert not (tmp_path / "a").exists()
    save(dataclasses.replace(preset, model=preset.encoder), tmp_path / "a")


def test_what_else_it_cannot_express(tmp_path):
    with pytest.raises(InputError, match="no activation='relu'"):
        save(make_ours("encoder", activation="relu"), tmp_path / "a")
    tokenizer = keras_bert.WordPiece(VOCABULARY, split_cjk=False)
    with pytest.raises(InputError, match="no split_cjk=False"):
        save(dataclasses.replace(make_ours("encoder"), tokenizer=tokenizer), tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="holds more than a preset"):
        save(make_ours("encoder"), tmp_path / "b")
    with pytest.raises(InputError, match="must be a local folder"):
        save(make_ours("encoder"), "hf://owner/name")


def test_older_presets(tmp_path):
    """Keras 2 and KerasNLP 0.8: other names of classes and layers, a copy of the encoder."""
    source = make_ours("text_classifier", activation="gelu_tanh")
    folder = save(source, tmp_path / "a")
    for name, other in {
        "config": "BertBackbone",
        "task": "BertClassifier",
        "tokenizer": "BertTokenizer",
        "preprocessor": "BertPreprocessor",
    }.items():
        described = {"class_name": other, "registered_name": f"keras_nlp>{other}"}
        change_json(folder / f"{name}.json", **described, keras_bert={})
    with h5py.File(folder / "model.weights.h5", "r+") as file:
        for block in ("transformer_encoder", "transformer_encoder_1"):
            group = file[f"layers/{block}/_self_attention_layer"]
            for name in ("query", "key", "value", "output"):
                group.move(f"{name}_dense", f"_{name}_dense")
        with h5py.File(folder / "task.weights.h5", "r+") as head:
            file.copy("layers", head, "layers/bert_backbone/layers")
            head["optimizer/vars/0"] = np.int64(7)
    again, report = load_with_report(folder)
    check_same_weights(again, source)
    assert "KerasHub, too, takes the encoder from model.weights.h5" in report.dropped.values()
    assert len(report.read) == len(report.assigned) + len(report.dropped)


def test_embedder_and_probabilities(hub, tmp_path):
    backbone, tokenizer = hub.BertBackbone(**NUMBERS), hub.BertTokenizer(VOCABULARY)
    preprocessor = hub.BertTextEmbedderPreprocessor(tokenizer, sequence_length=8)
    embedder = hub.BertTextEmbedder(backbone, preprocessor, pooling_mode="cls", normalize=False)
    embedder.save_to_preset(tmp_path / "a")
    preset = keras_bert.load(tmp_path / "a")
    assert preset.model is preset.encoder
    assert preset.settings == {"max_sequence_length": 8, "pooling": "cls", "normalize": False}
    assert not preset.tokenizer.lowercase
    theirs = make_theirs(hub, tmp_path / "b", "text_classifier", activation="softmax", dropout=0.3)
    preset = keras_bert.load(tmp_path / "b")
    probabilities = keras.ops.softmax(outputs_of(preset.model)["label"])
    check_same_outputs({"label": keras.ops.convert_to_numpy(probabilities)}, theirs)
    assert preset.model.get_layer("label_dropout").rate == 0.3
    make_theirs(hub, tmp_path / "c", "text_classifier", activation="sigmoid")
    assert keras_bert.load(tmp_path / "c").settings["multi_label"]


def test_bfloat16(hub, tmp_path):
    backbone = hub.BertBackbone(**NUMBERS, dtype="bfloat16")
    backbone.save_to_preset(tmp_path / "a")
    hub.BertTokenizer(VOCABULARY).save_to_preset(tmp_path / "a")
    pooler = numpy(weights_of(keras_bert.load(tmp_path / "a")))["pooler/kernel"]
    theirs = keras.ops.cast(backbone.pooled_dense.kernel, "float32")
    np.testing.assert_array_equal(pooler, keras.ops.convert_to_numpy(theirs))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return save(make_ours("text_classifier"), tmp_path_factory.mktemp("written") / "a")


@pytest.fixture
def folder(written, tmp_path):
    """A copy of a good preset, to be damaged."""
    return shutil.copytree(written, tmp_path / "a")


def replace(file, name, value):
    del file[name]
    file[name] = value


def point_outside(file):
    """A dataset whose bytes are in another file."""
    del file[f"{QUERY}/vars/1"]
    file.create_dataset(f"{QUERY}/vars/1", (2, 4), "f4", external=[("/etc/passwd", 0, 32)])


def make_virtual(file):
    layout = h5py.VirtualLayout((2, 4), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (2, 4))
    del file[f"{QUERY}/vars/1"]
    file.create_virtual_dataset(f"{QUERY}/vars/1", layout)


def make_hollow(file):
    """A shape of terabytes, and no bytes."""
    file.create_dataset("layers/more/vars/0", (10**6, 10**6), "f4", chunks=(1000, 1000))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model", lambda f: f.pop(f"{QUERY}/vars/1"), rf"lacks model\.weights\.h5/{QUERY}/vars/1:"),
        ("model", lambda f: f.pop("layers/embedding"), r"layers/embedding/vars/0 must .* none"),
        ("model", lambda f: f.pop("layers/transformer_encoder_1"), "holds 1 layers .* is 2"),
        ("model", lambda f: replace(f, f"{QUERY}/vars/1", np.zeros((4, 2), "f4")),
         rf"{QUERY}/vars/1 must have the shape \(8,\) .* Received: \(4, 2\)"),
        ("model", lambda f: replace(f, f"{QUERY}/vars/0", np.zeros((8, 4, 2), "f4")),
         rf"{QUERY}/vars/0 must have the shape \(8, 2, 4\)"),
        ("model", lambda f: replace(f, "layers/dense/vars/1", np.zeros(8, "i8")),
         "layers/dense/vars/1 must hold floats. Received: int64"),
        ("model", lambda f: f.create_dataset("layers/lambda/vars/0", data=[1.0]),
         r"unexpected model\.weights\.h5/layers/lambda/vars/0"),
        ("task", lambda f: f.pop("layers/dense/vars/0"), "column for each of the num_classes=3"),
        ("task", lambda f: f.pop("layers/dense/vars/1"),
         r"lacks task\.weights\.h5/layers/dense/vars/1"),
        ("task", lambda f: replace(f, "layers/dense/vars/0", np.zeros((8, 4), "f4")),
         r"layers/dense/vars/0 must have a column for each .* \(8, 4\)"),
        ("model", lambda f: f.__setitem__("layers/x", h5py.ExternalLink("../secret.h5", "/")),
         "layers/x is a link to another place"),
        ("model", lambda f: f.__setitem__("x", h5py.SoftLink("/layers")), "x is a link"),
        ("model", point_outside, f"{QUERY}/vars/1 isn't stored whole"),
        ("model", make_virtual, f"{QUERY}/vars/1 isn't stored whole"),
        ("model", make_hollow, "layers/more/vars/0 isn't stored whole"),
    ],
)  # fmt: skip
def test_wrong_tensors_are_named(folder, name, change, message):
    with h5py.File(folder / f"{name}.weights.h5", "r+") as file:
        change(file)
    with pytest.raises(InputError, match=message) as caught:
        keras_bert.load(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["model.weights.h5", "task.weights.h5"])
def test_damaged_weights(folder, name):
    content = (folder / name).read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"PK\x03\x04" + content):
        (folder / name).write_bytes(damaged)
        with pytest.raises(InputError, match=rf"{name} is damaged"):
            keras_bert.load(folder)


def test_a_group_within_itself(folder):
    with h5py.File(folder / "model.weights.h5", "r+") as file:
        file["layers/again"] = file["layers"]
    check_same_weights(keras_bert.load(folder), keras_bert.load(folder))


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", *keras_hub.WEIGHTS, "assets/tokenizer/vocabulary.txt"],
)
def test_missing_file(folder, name):
    os.remove(folder / name)
    with pytest.raises(InputError, match=name):
        keras_bert.load(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, "\ufeff{}", '{"config": 1}'])
@pytest.mark.parametrize("name", ["config.json", "task.json", "tokenizer.json"])
def test_json_that_is_none(folder, name, content):
    (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=name):
        keras_bert.load(folder)


@pytest.mark.parametrize(
    "name", ["config.json", "task.json", "tokenizer.json", "preprocessor.json"]
)
@pytest.mark.parametrize(
    "described",
    [
        {"class_name": "Lambda", "registered_name": None, "module": "keras.layers"},
        {"class_name": "system", "registered_name": "os>system", "module": "os"},
        {"class_name": "Lambda"},
        {"registered_name": "builtins>eval"},
        {"class_name": ["BertBackbone"]},
        {"class_name": "RobertaBackbone", "registered_name": "keras_hub>RobertaBackbone"},
    ],
)
def test_no_name_picks_a_class(folder, name, described):
    change_json(folder / name, **described)
    with pytest.raises(InputError, match=rf"{name} must describe KerasHub's"):
        keras_bert.load(folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config", {"num_heads": 3}, "num_heads"),
        ("config", {"num_heads": 4}, r"query_dense/vars/0 must have the shape \(8, 4, 2\)"),
        ("config", {"num_layers": 10**9}, "num_layers is 1000000000"),
        ("config", {"vocabulary_size": 10**9}, r"must have the shape \(1000000000, 8\)"),
        ("config", {"max_sequence_length": 512}, r"position_embedding/vars/0 must have the shape"),
        ("config", {"hidden_dim": "8"}, "`hidden_dim` must be a whole number"),
        ("config", {"dropout": None}, "`dropout` must be in"),
        ("config", {"use_rope": True}, "BertBackbone has use_rope"),
        ("task", {"num_classes": 10**9}, "num_classes=1000000000"),
        ("task", {"num_classes": "3"}, "num_classes='3'"),
        ("task", {"dropout": 2}, r"task\.json: dropout must be in \[0, 1\)"),
        (
            "task",
            {"activation": {"class_name": "Lambda"}},
            r"task\.json: activation must be linear",
        ),
        ("task", {"activation": "os.system"}, "Received: 'os.system'"),
        ("tokenizer", {"lowercase": "yes"}, "lowercase must be False or True"),
        ("tokenizer", {"lowercase": 1}, "lowercase must be False or True"),
        ("tokenizer", {"oov_token": "<unk>"}, r"oov_token must be '\[UNK\]'"),
        ("tokenizer", {"suffix_indicator": "@@"}, "suffix_indicator must be"),
        ("tokenizer", {"split": False}, "split must be True"),
    ],
)
def test_wrong_configs(folder, name, change, message):
    change_config(folder / f"{name}.json", **change)
    with pytest.raises(InputError, match=message):
        keras_bert.load(folder)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (7, "can't have keras_bert=7"),
        ({"code": {}}, "can't have code="),
        ({"config": []}, "can't have config="),
        ({"config": {"activation": "os.system"}}, "no activation='os.system'"),
        ({"config": {"colour": 1}}, "colour"),
        ({"labels": ["one"]}, r"must name 3 classes. Received: \('one',\)"),
        ({"labels": [1, 2, 3]}, "must name 3 classes"),
        ({"settings": {"max_sequence_length": 99}}, "must be from 3 to 10"),
        ({"tokenizer": {"max_chars_per_word": "many"}}, "max_chars_per_word='many'"),
    ],
)
def test_wrong_keys_of_our_own(folder, own, message):
    change_json(folder / "config.json", keras_bert=own)
    with pytest.raises(InputError, match=message):
        keras_bert.load(folder)


@pytest.mark.parametrize("head", [{"activation": "relu"}, {"norm_epsilon": 5}, {"units": 3},
                                  {"norm_epsilon": "tiny"}])  # fmt: skip
def test_wrong_numbers_of_the_head(tmp_path, head):
    folder = save(make_ours("masked_lm"), tmp_path / "a")
    change_json(folder / "config.json", keras_bert={"head": head})
    with pytest.raises(InputError, match=r"config\.json: no head of"):
        keras_bert.load(folder)


def test_sequence_length_and_vocabulary_must_fit(folder):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    change_json(folder / "config.json", keras_bert={**config["keras_bert"], "settings": {}})
    change_config(folder / "preprocessor.json", sequence_length=512)
    with pytest.raises(InputError, match="the sequence length must be from 3"):
        keras_bert.load(folder)
    change_config(folder / "preprocessor.json", sequence_length=9)
    more = "\n".join([*VOCABULARY, "a", "b", "c", "d"])
    (folder / keras_hub.VOCABULARY).write_text(more, encoding="utf-8")
    with pytest.raises(InputError, match="13 tokens must fit the token table of 12 rows"):
        keras_bert.load(folder)


def test_a_preset_in_shards(folder):
    (folder / "model.weights.h5").rename(folder / "model_00000.weights.h5")
    (folder / "model.weights.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="max_shard_size=None"):
        keras_bert.load(folder)
