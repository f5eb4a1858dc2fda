"""Google's TensorFlow 1 checkpoints: made here under the original names, read, written, refused."""

from __future__ import annotations

import dataclasses
import json

import keras
import numpy as np
import pytest
import test_golden
from conftest import TESTS
from test_golden import formula_weights

import keras_bert
from keras_bert.errors import InputError

tf = pytest.importorskip("tensorflow")
from keras_bert.checkpoints import google  # noqa: E402

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", "good"]
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 8,
    "initializer_range": 0.02,
    "intermediate_size": 16,
    "max_position_embeddings": 12,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": 20,
}
# The formula's names -> Google's, written out apart from the package's own table.
GOOGLE = {
    "embeddings.word": "bert/embeddings/word_embeddings",
    "embeddings.position": "bert/embeddings/position_embeddings",
    "embeddings.token_type": "bert/embeddings/token_type_embeddings",
    "embeddings.ln": "bert/embeddings/LayerNorm",
    "query": "attention/self/query",
    "key": "attention/self/key",
    "value": "attention/self/value",
    "attn_out": "attention/output/dense",
    "attn_ln": "attention/output/LayerNorm",
    "ffn_in": "intermediate/dense",
    "ffn_out": "output/dense",
    "ffn_ln": "output/LayerNorm",
    "pooler": "bert/pooler/dense",
    "mlm.dense": "cls/predictions/transform/dense",
    "mlm.ln": "cls/predictions/transform/LayerNorm",
    "mlm.bias": "cls/predictions/output_bias",
    "nsp.w": "cls/seq_relationship/output_weights",
    "nsp.b": "cls/seq_relationship/output_bias",
}
LEAVES = {"w": "kernel", "b": "bias", "gamma": "gamma", "beta": "beta"}
WORDS = "bert/embeddings/word_embeddings"


def stored_formula():
    return json.loads((TESTS / "golden" / "formula_bert.json").read_text(encoding="utf-8"))


def google_tensors():
    """The weights of `formula_bert.json` as Google's pretraining leaves them."""
    tensors = {}
    for name, tensor in formula_weights(stored_formula()["order"]).items():
        tensor = tensor.astype("float32")
        if name in GOOGLE:
            tensors[GOOGLE[name]] = tensor.T if name == "nsp.w" else tensor
            continue
        scope, _, leaf = name.rpartition(".")
        if scope.startswith("layer"):
            layer, part = scope.split(".")
            scope = f"bert/encoder/layer_{layer.removeprefix('layer')}/{GOOGLE[part]}"
        else:
            scope = GOOGLE[scope]
        tensors[f"{scope}/{LEAVES[leaf]}"] = tensor
    return tensors


def encoder_tensors():
    return {name: t for name, t in google_tensors().items() if name.startswith("bert/")}


def with_training_state(tensors):
    slots = {
        f"{name}/{slot}": 0 * t for name, t in tensors.items() for slot in ("adam_m", "adam_v")
    }
    return tensors | slots | {"global_step": np.int64(1234)}


def write_checkpoint(prefix, tensors, version=2):
    names, values = list(tensors), [tf.constant(tensor) for tensor in tensors.values()]
    if version == 2:
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=values,
        )
    else:
        tf.raw_ops.Save(filename=str(prefix), tensor_names=names, data=values)


@pytest.fixture
def release(tmp_path):
    """Makes a folder as Google's are, from tensors and changes to the config."""

    def make(tensors, name="bert_model.ckpt", folder="release", version=2, **config):
        folder = tmp_path / folder
        folder.mkdir(exist_ok=True)
        (folder / "bert_config.json").write_text(json.dumps(CONFIG | config), encoding="utf-8")
        (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
        write_checkpoint(folder / name, tensors, version)
        return folder

    return make


@pytest.fixture
def preset():
    """An encoder of ours with random weights; a test puts its head on it."""
    config = keras_bert.BertConfig(
        vocabulary_size=9, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32
    )
    encoder = keras_bert.bert(config)
    tokenizer = keras_bert.WordPiece(VOCABULARY, lowercase=False)
    return keras_bert.Preset(config, encoder, tokenizer, encoder)


def check_formula_outputs(preset, activation="erf"):
    test_golden.check_formula_outputs(preset.model, preset.encoder, stored_formula(), activation)


def weights(preset):
    """Every weight, the encoder's pooler too, by its path."""
    found = [*preset.encoder.weights, *preset.model.weights]
    return {weight.path: keras.ops.convert_to_numpy(weight.value) for weight in found}


@pytest.mark.parametrize(
    ("name", "version"),
    [("bert_model.ckpt", 2), ("bert_model.ckpt", 1), ("model.ckpt-1234", 2), ("model.ckpt-7", 1)],
)
def test_pretraining_with_slots(release, name, version):
    """CKP-07."""
    folder = release(with_training_state(google_tensors()), name, version=version)
    preset, report = google.read_with_report(folder)
    assert preset.model.name == "pretraining"
    check_formula_outputs(preset)
    assert preset.config == keras_bert.BertConfig(
        vocabulary_size=20,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=12,
    )
    assert preset.tokenizer.max_chars_per_word == 200
    assert preset.settings == {"max_sequence_length": 12}
    assert sorted(report.read) == sorted(google_tensors())
    assert len(report.assigned) == len(report.read)
    assert report.dropped["global_step"] == "a counter of the training run"
    assert report.dropped[f"{WORDS}/adam_m"] == "an optimizer's slot"
    assert len(report.dropped) == 2 * len(report.read) + 1


def test_activation_and_epsilon_come_from_the_config(release):
    folder = release(google_tensors(), hidden_act="gelu_new", layer_norm_eps=1e-12)
    check_formula_outputs(google.read(folder), "tanh")
    folder = release(google_tensors(), hidden_act="relu", layer_norm_eps=1e-5)
    config = google.read(folder).config
    assert (config.activation, config.norm_epsilon) == ("relu", 1e-5)


def test_config_json_and_keys_that_say_nothing(release):
    folder = release(google_tensors(), directionality="bidi", pooler_type="first_token_transform")
    (folder / "bert_config.json").rename(folder / "config.json")
    check_formula_outputs(google.read(folder))


def test_latest_step_is_read(release):
    tensors = google_tensors()
    for step in (900, 1000):
        folder = release(
            tensors | {"cls/predictions/output_bias": np.full(20, step, "float32")},
            f"model.ckpt-{step}",
        )
    np.testing.assert_array_equal(weights(google.read(folder))["masked_lm/bias"], np.full(20, 1000))
    write_checkpoint(folder / "bert_model.ckpt", tensors)
    with pytest.raises(InputError, match=r"one checkpoint.*bert_model\.ckpt, model\.ckpt-1000\."):
        google.read(folder)


def test_classifier_of_run_classifier(release):
    rng = np.random.default_rng(0)
    head = {
        "output_weights": rng.normal(size=(3, 8)).astype("float32"),
        "output_bias": rng.normal(size=3).astype("float32"),
    }
    preset = google.read(release(with_training_state(encoder_tensors() | head), "model.ckpt-343"))
    assert preset.model.name == "text_classifier"
    assert preset.labels == ("0", "1", "2")
    inputs = {k: np.array(rows, "int32") for k, rows in stored_formula()["inputs"].items()}
    pooled = np.array(stored_formula()["outputs"]["erf"]["pooled"])
    logits = preset.model.predict(inputs, verbose=0)["label"]
    expected = pooled @ head["output_weights"].T + head["output_bias"]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5)


def test_spans_of_run_squad(release):
    rng = np.random.default_rng(0)
    head = {
        "cls/squad/output_weights": rng.normal(size=(2, 8)).astype("float32"),
        "cls/squad/output_bias": rng.normal(size=2).astype("float32"),
    }
    preset = google.read(release(encoder_tensors() | head))
    assert preset.model.name == "span_classifier"
    inputs = {k: np.array(rows, "int32") for k, rows in stored_formula()["inputs"].items()}
    sequence = np.array(stored_formula()["outputs"]["erf"]["sequence"])
    outputs = preset.model.predict(inputs, verbose=0)
    real = inputs["padding_mask"] == 1
    for row, name in enumerate(("start", "end")):
        expected = sequence @ head["cls/squad/output_weights"][row]
        expected += head["cls/squad/output_bias"][row]
        np.testing.assert_allclose(outputs[name][real], expected[real], rtol=0, atol=3e-5)


def test_heads_decide_the_model(release):
    tensors = google_tensors()
    assert google.read(release(encoder_tensors(), folder="a")).model.name == "bert"
    masked_lm = {name: t for name, t in tensors.items() if "seq_relationship" not in name}
    assert google.read(release(masked_lm, folder="b")).model.name == "masked_lm"
    next_sentence = {name: t for name, t in tensors.items() if "predictions" not in name}
    assert google.read(release(next_sentence, folder="c")).model.name == "next_sentence"


@pytest.mark.parametrize(
    ("folder", "token", "config", "lowercase"),
    [
        ("uncased_L-12_H-768_A-12", "Berlin", {}, True),
        ("wwm_cased_L-24_H-1024_A-16", "berlin", {}, False),
        ("multi_cased_L-12_H-768_A-12", "berlin", {}, False),
        ("chinese_L-12_H-768_A-12", "Berlin", {}, True),
        ("multilingual_L-12_H-768_A-12", "Berlin", {}, True),
        ("mine", "Berlin", {}, False),
        ("mine", "berlin", {}, True),
        ("mine", "<S>", {}, True),
        ("cased_L-12_H-768_A-12", "Berlin", {"do_lower_case": True}, True),
    ],
)
def test_casing(release, folder, token, config, lowercase):
    folder = release(encoder_tensors(), folder=folder, **config)
    (folder / "vocab.txt").write_text("\n".join([*VOCABULARY, token]) + "\n", encoding="utf-8")
    tokenizer = google.read(folder).tokenizer
    assert tokenizer.lowercase is lowercase
    assert tokenizer.strip_accents is lowercase


@pytest.mark.parametrize(
    "task",
    ["bert", "pretraining", "masked_lm", "next_sentence", "text_classifier", "span_classifier"],
)
def test_round_trip_is_bit_equal(preset, tmp_path, task):
    if task == "text_classifier":
        model = keras_bert.tasks.text_classifier(preset.encoder, 2)
        preset = dataclasses.replace(
            preset, model=model, labels=("不好", "good"), settings={"max_sequence_length": 12}
        )
    elif task != "bert":
        model = getattr(keras_bert.tasks, task)(preset.encoder)
        preset = dataclasses.replace(preset, model=model)
    google.write(preset, tmp_path / "google")
    again = google.read(tmp_path / "google")
    assert again.model.name == task
    assert again.config == preset.config
    assert (again.labels, again.settings) == (preset.labels, preset.settings)
    assert again.tokenizer.get_config() == preset.tokenizer.get_config()
    assert again.tokenizer.vocabulary == VOCABULARY
    before, after = weights(preset), weights(again)
    assert set(before) == set(after)
    for path, weight in before.items():
        np.testing.assert_array_equal(after[path], weight, err_msg=path)


def test_what_is_written(release, tmp_path):
    google.write(google.read(release(with_training_state(google_tensors()))), tmp_path / "again")
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == [
        "bert_config.json",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "vocab.txt",
    ]
    described = json.loads((tmp_path / "again" / "bert_config.json").read_text(encoding="utf-8"))
    described.pop("keras_bert")
    assert described == CONFIG
    reader = tf.train.load_checkpoint(str(tmp_path / "again" / "bert_model.ckpt"))
    expected = google_tensors()
    assert set(reader.get_variable_to_shape_map()) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(reader.get_tensor(name), tensor, err_msg=name)


def test_tanh_gelu_and_word_length_travel(preset, tmp_path):
    config = dataclasses.replace(preset.config, activation="gelu_tanh")
    tokenizer = keras_bert.WordPiece(VOCABULARY, max_chars_per_word=100)
    preset = dataclasses.replace(preset, config=config, tokenizer=tokenizer)
    google.write(preset, tmp_path / "google")
    again = google.read(tmp_path / "google")
    assert again.config.activation == "gelu_tanh"
    assert again.tokenizer.max_chars_per_word == 100


def test_what_google_cannot_express_is_refused(preset, tmp_path):
    tagger = keras_bert.tasks.token_classifier(preset.encoder, 3)
    for change, message in (
        ({"model": tagger}, "token_classifier"),
        ({"config": dataclasses.replace(preset.config, norm_epsilon=1e-7)}, "norm_epsilon=1e-07"),
        ({"config": dataclasses.replace(preset.config, activation="silu")}, "activation='silu'"),
        ({"tokenizer": keras_bert.WordPiece(VOCABULARY, strip_accents=False)}, "strip_accents"),
        ({"tokenizer": keras_bert.WordPiece(VOCABULARY, split_cjk=False)}, "split_cjk=False"),
    ):
        with pytest.raises(InputError, match=f"Google's code has no .*{message}"):
            google.write(dataclasses.replace(preset, **change), tmp_path / "google")
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_replaced_and_nothing_else_is(preset, tmp_path):
    google.write(preset, tmp_path / "google")
    google.write(preset, tmp_path / "google")
    assert [path.name for path in tmp_path.iterdir()] == ["google"]
    (tmp_path / "google" / "model.ckpt-9.index").write_bytes(b"theirs")
    with pytest.raises(InputError, match="holds more than a checkpoint"):
        google.write(preset, tmp_path / "google")
    assert (tmp_path / "google" / "model.ckpt-9.index").read_bytes() == b"theirs"


def without(*names):
    return {name: t for name, t in google_tensors().items() if not name.startswith(names)}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            lambda: without("bert/encoder/layer_1/output/dense/bias"),
            "lacks bert/encoder/layer_1/out",
        ),
        (lambda: without("bert/encoder/layer_1/"), r"lacks bert/encoder/layer_1/\*"),
        (lambda: without("bert/"), f"lacks {WORDS}"),
        (lambda: without("cls/predictions/transform/dense"), "lacks cls/predictions/transform"),
        (
            lambda: google_tensors() | {"cls/extra": np.zeros(2, "float32")},
            "unexpected cls/extra",
        ),
        (lambda: google_tensors() | {"step": np.int64(3)}, "step must be floats. Received: int64"),
        (
            lambda: google_tensors() | {WORDS: np.zeros((24, 8), "float32")},
            r"word_embeddings must have the shape \(20, 8\).*\(24, 8\)",
        ),
        (
            lambda: google_tensors() | {"bert/pooler/dense/bias": np.zeros(7, "float32")},
            r"bert/pooler/dense/bias must have the shape \(8,\).*\(7,\)",
        ),
        (
            lambda: encoder_tensors() | {"output_weights": np.zeros(3, "float32")},
            r"output_weights must have the shape .*\(3,\)",
        ),
    ],
)
def test_wrong_tensors_are_named(release, tensors, message):
    with pytest.raises(InputError, match=rf"bert_model\.ckpt.*{message}"):
        google.read(release(tensors()))


def test_promises_of_the_config_are_checked_before_building(release):
    for config, message in (
        ({"num_hidden_layers": 10**9}, r"layer_2/\*"),
        ({"vocab_size": 10**9}, "word_embeddings must have"),
        ({"intermediate_size": 10**9}, "intermediate/dense/kernel must have"),
    ):
        with pytest.raises(InputError, match=message):
            google.read(release(google_tensors(), **config))


@pytest.mark.parametrize("version", [1, 2])
def test_damaged_files(release, version):
    folder = release(google_tensors(), version=version)
    path = folder / "bert_model.ckpt"
    if version == 2:
        path = folder / "bert_model.ckpt.data-00000-of-00001"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"bert_model\.ckpt.*(broke off|can't be opened)"):
        google.read(folder)
    if version == 2:
        path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
        with pytest.raises(InputError, match=r"bert_model\.ckpt is damaged at tensor bert/embedd"):
            google.read(folder)
        path.unlink()
        with pytest.raises(InputError, match=r"bert_model\.ckpt\.data-\* has 0 bytes"):
            google.read(folder)
        (folder / "bert_model.ckpt.index").write_bytes(b"no index")
        with pytest.raises(InputError, match=r"bert_model\.ckpt can't be opened"):
            google.read(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert_model.ckpt.index", "must hold one checkpoint.*none"),
        ("vocab.txt", r"vocab\.txt"),
        ("bert_config.json", r"has no bert_config\.json"),
    ],
)
def test_missing_files(release, name, message):
    folder = release(google_tensors())
    (folder / name).unlink()
    with pytest.raises(InputError, match=message):
        google.read(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_act": "swoosh"}, "hidden_act must be one of gelu.*'swoosh'"),
        ({"hidden_act": ["gelu"]}, "can't be used"),
        ({"hidden_size": "8"}, "hidden_dim.*'8'"),
        ({"initializer_range": None}, "can't be used"),
        ({"vocab_size": 8}, "vocab_size of 8 .* 9 tokens"),
        ({"keras_bert": 5}, "keras_bert can't be used"),
        ({"keras_bert": {"max_chars_per_word": "many"}}, "keras_bert can't be used"),
    ],
)
def test_wrong_configs(release, config, message):
    with pytest.raises(InputError, match=rf"bert_config\.json.*{message}"):
        google.read(release(google_tensors(), **config))


def test_configs_that_are_none(release):
    folder = release(google_tensors())
    for text, message in (("{", "isn't a JSON object"), ("[1]", "JSON object"), ("{}", "lacks")):
        (folder / "bert_config.json").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            google.read(folder)


def test_labels_must_fit(release):
    head = {"output_weights": np.zeros((3, 8), "float32"), "output_bias": np.zeros(3, "float32")}
    folder = release(encoder_tensors() | head, keras_bert={"labels": ["no", "yes"]})
    with pytest.raises(InputError, match=r"bert_config\.json: 2 labels for 3 classes"):
        google.read(folder)
