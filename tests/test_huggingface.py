"""Hugging Face folders: every head and spelling in, the same bits out, and bad files refused."""

from __future__ import annotations

import json
import pathlib
import struct
import time

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from test_golden import GradientRecorder, encoder_inputs

import keras_bert
from keras_bert.checkpoints import huggingface, parity, preset, safetensors_files
from keras_bert.errors import InputError

CONFIG = {
    "model_type": "bert",
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 48,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(95))]
# The stored model -> Hugging Face's class, our task, and {our output: their output}.
MODELS = {
    "model": ("BertModel", "bert", {"pooled_output": "pooler_output"}),
    "pretraining": ("BertForPreTraining", "pretraining", {
        "masked_lm": "prediction_logits", "next_sentence": "seq_relationship_logits"}),
    "masked_lm": ("BertForMaskedLM", "masked_lm", {"masked_lm": "logits"}),
    "next_sentence": ("BertForNextSentencePrediction", "next_sentence",
                      {"next_sentence": "logits"}),
    "seqcls_3": ("BertForSequenceClassification", "text_classifier", {"label": "logits"}),
    "seqcls_regression": ("BertForSequenceClassification", "text_classifier",
                          {"label": "logits"}),
    "seqcls_multilabel": ("BertForSequenceClassification", "text_classifier",
                          {"label": "logits"}),
    "tokencls_7": ("BertForTokenClassification", "token_classifier", {"labels": "logits"}),
    "qa": ("BertForQuestionAnswering", "span_classifier",
           {"start": "start_logits", "end": "end_logits"}),
    "multiple_choice": ("BertForMultipleChoice", "multiple_choice", {"label": "logits"}),
}  # fmt: skip


@pytest.fixture
def folder(golden, tmp_path):
    """Writes a stored model as a folder; `tensors` and `config` change it."""

    def write(name, tensors=None, texts=True, **config):
        folder = tmp_path / "source"
        folder.mkdir(exist_ok=True)
        described = CONFIG | {"architectures": [MODELS[name][0]]} | config
        (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
        if texts:
            (folder / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
        tensors = golden(f"weights_tiny_{name}") if tensors is None else tensors
        if tensors:
            save_file({k: np.ascontiguousarray(x) for k, x in tensors.items()},
                      folder / "model.safetensors")  # fmt: skip
        return folder

    return write


def outputs_of(model, inputs):
    if "mask_positions" in model.input:
        everywhere = np.tile(np.arange(24, dtype="int32"), (4, 1))
        inputs = inputs | {"mask_positions": everywhere}
    outputs = model(inputs, training=False)
    return {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}


def check_outputs(golden, name, model):
    arrays = golden(f"outputs_tiny_{'model_gelu' if name == 'model' else name}")
    outputs = outputs_of(model, encoder_inputs(arrays))
    for ours, theirs in MODELS[name][2].items():
        np.testing.assert_allclose(outputs[ours], arrays[f"out_{theirs}"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back(folder, golden, tmp_path, name):
    """Every head's logits, and the same tensors under the same names on the way back."""
    source, report = huggingface.read_with_report(folder(name))
    assert source.model.name == MODELS[name][1]
    check_outputs(golden, name, source.model)
    tensors = golden(f"weights_tiny_{name}")
    assert report.unexpected == report.missing == []
    assert sorted(report.read) == sorted(tensors)
    assert len(report.assigned) == len(tensors)
    has_pooler = any("pooler" in tensor for tensor in tensors)
    assert sorted(report.kept) == ([] if has_pooler else ["pooler/bias", "pooler/kernel"])

    huggingface.write(source, tmp_path / "back")
    written = load_file(tmp_path / "back" / "model.safetensors")
    assert set(written) == set(tensors)
    for key, tensor in tensors.items():
        np.testing.assert_array_equal(written[key], tensor)
    described = json.loads((tmp_path / "back" / "config.json").read_text(encoding="utf-8"))
    assert described["architectures"] == [MODELS[name][0]]
    assert {key: described[key] for key in CONFIG} == CONFIG
    again = huggingface.read(tmp_path / "back")
    assert (again.config, again.labels, again.settings) == (
        source.config, source.labels, source.settings)  # fmt: skip
    assert again.tokenizer.vocabulary == VOCABULARY
    # The bits are the same; threads may add them up in another order.
    assert parity.max_difference(source.model, again.model) < 1e-5


def check_gradients(model, arrays, inputs, labels, weights=None, losses=1):
    """The loss and every gradient; `losses`: of how many theirs is the mean and ours the sum."""
    recorder = GradientRecorder(learning_rate=0.0)
    model.compile(
        recorder,
        {name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in labels},
    )
    loss = np.ravel(model.train_on_batch(inputs, labels, sample_weight=weights))[0]
    np.testing.assert_allclose(loss / losses, arrays["loss"], rtol=1e-5)
    norms = dict(zip(arrays["grad_names"], arrays["grad_norms"], strict=True))
    for variable, gradient in zip(model.trainable_variables, recorder.recorded, strict=True):
        name = huggingface.hugging_face_name(variable.path)
        gradient = np.array(keras.ops.convert_to_numpy(gradient.value)) / losses
        if variable.path == "token_embedding/embeddings":
            gradient[0] = 0  # theirs has no gradient at [PAD], which spans' logits reach
        norm = np.sqrt(np.sum(np.square(gradient, dtype="float64")))
        np.testing.assert_allclose(norm, norms.pop(name), rtol=1e-4, atol=1e-7, err_msg=name)
    assert not norms


def test_tagger_learns_as_theirs(folder, golden):
    arrays = golden("outputs_tiny_tokencls_7")
    labels = arrays["labels"]
    check_gradients(
        huggingface.read(folder("tokencls_7")).model,
        arrays,
        encoder_inputs(arrays),
        {"labels": np.maximum(labels, 0).astype("int32")},
        {"labels": (labels >= 0).astype("float32")},
    )


def test_span_classifier_learns_as_theirs(folder, golden):
    arrays = golden("outputs_tiny_qa")
    check_gradients(
        huggingface.read(folder("qa")).model,
        arrays,
        encoder_inputs(arrays),
        {name: arrays[f"{name}_positions"].astype("int32") for name in ("start", "end")},
        losses=2,
    )


def test_multiple_choice_learns_as_theirs(folder, golden):
    arrays = golden("outputs_tiny_multiple_choice")
    check_gradients(
        huggingface.read(folder("multiple_choice")).model,
        arrays,
        encoder_inputs(arrays),
        {"label": arrays["labels"].astype("int32")},
    )


def test_multiple_choice_saves_as_keras_archive(folder, tmp_path):
    model = huggingface.read(folder("multiple_choice")).model
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert parity.max_difference(model, again) < 1e-5


# How the tensors are spelled.


@pytest.mark.parametrize("prefix", ["", "bert.", "module.", "module.bert.", "model."])
def test_prefixes(folder, golden, prefix):
    tensors = {prefix + name: x for name, x in golden("weights_tiny_model").items()}
    source, report = huggingface.read_with_report(folder("model", tensors))
    check_outputs(golden, "model", source.model)
    assert report.prefix == prefix
    assert not prefix or f"without the prefix {prefix!r}" in str(report)


@pytest.mark.parametrize("outer", ["module.", "model."])
def test_prefixes_of_heads(folder, golden, outer):
    tensors = {outer + name: x for name, x in golden("weights_tiny_seqcls_3").items()}
    check_outputs(golden, "seqcls_3", huggingface.read(folder("seqcls_3", tensors)).model)


def test_legacy_names(folder, golden):
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma")
            .replace("LayerNorm.bias", "LayerNorm.beta"): x
        for name, x in golden("weights_tiny_pretraining").items()
    }  # fmt: skip
    assert "cls.predictions.transform.LayerNorm.gamma" in tensors
    check_outputs(golden, "pretraining", huggingface.read(folder("pretraining", tensors)).model)


def test_buffers_are_dropped_with_a_reason(folder, golden):
    buffer = {"embeddings.position_ids": np.arange(48)[None]}
    _, report = huggingface.read_with_report(folder("model", golden("weights_tiny_model") | buffer))
    assert report.dropped == {"embeddings.position_ids": "a buffer, no weight"}
    assert "embeddings.position_ids: a buffer" in str(report)


def test_tied_decoder(folder, golden):
    tensors = golden("weights_tiny_pretraining")
    words, bias = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
    copies = {
        "cls.predictions.decoder.weight": tensors[words],
        "cls.predictions.decoder.bias": tensors[bias],
    }
    source, report = huggingface.read_with_report(folder("pretraining", tensors | copies))
    assert sorted(report.dropped) == sorted(["cls.predictions.decoder.bias",
                                             "cls.predictions.decoder.weight"])  # fmt: skip
    check_outputs(golden, "pretraining", source.model)

    del tensors[bias]
    source = huggingface.read(folder("pretraining", tensors | copies))
    check_outputs(golden, "pretraining", source.model)

    copies["cls.predictions.decoder.weight"] = tensors[words] + 1
    with pytest.raises(InputError, match=r"decoder\.weight must equal bert\.embeddings\.word_"):
        huggingface.read(folder("pretraining", tensors | copies))


def test_shards(folder, golden):
    tensors = golden("weights_tiny_seqcls_3")
    where = folder("seqcls_3", {})
    names = sorted(tensors)
    places = {}
    for number, part in enumerate((names[:20], names[20:])):
        shard = f"model-0000{number + 1}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, where / shard)
        places |= dict.fromkeys(part, shard)
    index = where / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    check_outputs(golden, "seqcls_3", huggingface.read(where).model)

    for wrong, message in (
        ({"classifier.bias": "../elsewhere.safetensors"}, r"names the file '\.\./elsewhere"),
        ({"extra": places[names[0]]}, "tensor extra isn't in its shards"),
    ):
        index.write_text(json.dumps({"weight_map": places | wrong}), encoding="utf-8")
        with pytest.raises(InputError, match=message):
            huggingface.read(where)


def test_pytorch_bin(folder, golden):
    torch = pytest.importorskip("torch")
    tensors = golden("weights_tiny_seqcls_3")
    where = folder("seqcls_3", {})
    torch.save({k: torch.from_numpy(x) for k, x in tensors.items()}, where / "pytorch_model.bin")
    check_outputs(golden, "seqcls_3", huggingface.read(where).model)
    torch.save({"classifier.bias": 3}, where / "pytorch_model.bin")
    with pytest.raises(
        InputError, match=r"pytorch_model\.bin: 'classifier\.bias' must be a tensor"
    ):
        huggingface.read(where)


def test_half_precision(folder, golden, tmp_path):
    """float16 and bfloat16 become the float32 numbers that they stand for."""
    tensors = golden("weights_tiny_model")
    halves = {name: x.astype("float16") for name, x in tensors.items()}
    read = huggingface.read(folder("model", halves)).encoder.get_layer("pooler").bias
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(read.value), halves["pooler.dense.bias"].astype("float32")
    )
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors({"a": ("BF16", [2], [0, 4])}, b"\x80\x3f\x40\xc0"))
    np.testing.assert_array_equal(safetensors_files.read_safetensors(path)["a"], [1.0, -3.0])


def test_reader_agrees_with_the_library(folder):
    path = folder("pretraining") / "model.safetensors"
    theirs, ours = load_file(path), safetensors_files.read_safetensors(path)
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(ours[name], tensor)
        assert ours[name].dtype == tensor.dtype


def test_an_unused_pooler_is_kept(folder, golden):
    """A tagger's file may hold the pooler that its encoder had."""
    tensors = golden("weights_tiny_tokencls_7")
    pooler = {
        "bert.pooler.dense.weight": np.full((32, 32), 0.5, "float32"),
        "bert.pooler.dense.bias": np.full(32, 0.25, "float32"),
    }
    source, report = huggingface.read_with_report(folder("tokencls_7", tensors | pooler))
    assert report.kept == {}
    bias = source.encoder.get_layer("pooler").bias
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(bias.value), 0.25)


def test_encoder_without_pooler(folder, golden, tmp_path):
    tensors = golden("weights_tiny_model")
    tensors = {name: x for name, x in tensors.items() if "pooler" not in name}
    source, report = huggingface.read_with_report(folder("model", tensors))
    assert sorted(report.kept) == ["pooler/bias", "pooler/kernel"]
    assert source.settings == {"pooler": False}
    huggingface.write(source, tmp_path / "back")
    assert set(load_file(tmp_path / "back" / "model.safetensors")) == set(tensors)


# What isn't ours to guess.


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("gelu", "gelu"), ("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh"),
     ("gelu_fast", "gelu_tanh"), ("relu", "relu")],
)  # fmt: skip
def test_numbers_come_from_the_source(folder, theirs, ours):
    source = huggingface.read(folder("model", hidden_act=theirs, layer_norm_eps=1e-7))
    assert source.config.activation == ours
    assert source.config.norm_epsilon == 1e-7
    assert source.encoder.get_layer("block_0").norm_epsilon == 1e-7


@pytest.mark.parametrize(
    "wrong",
    [{"hidden_act": "gelu_10"}, {"hidden_act": None}, {"hidden_act": ["gelu"]},
     {"model_type": "roberta"}, {"position_embedding_type": "relative_key"}, {"is_decoder": True},
     {"vocab_size": None}, {"layer_norm_eps": "1e-12"}, {"layer_norm_eps": float("nan")},
     {"hidden_dropout_prob": 1.5}, {"num_attention_heads": 3}, {"num_attention_heads": 4.5},
     {"architectures": "BertModel"}],
    ids=str,
)  # fmt: skip
def test_unknown_numbers_are_refused(folder, wrong):
    words = {"num_attention_heads": "num_heads", "hidden_dropout_prob": "dropout"}
    key = next(iter(wrong))
    with pytest.raises(InputError, match=rf"config\.json: .*{words.get(key, key)}"):
        huggingface.read(folder("model", **wrong))


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "max_position_embeddings",
                                 "type_vocab_size", "intermediate_size"])  # fmt: skip
def test_sizes_that_disagree_with_the_tensors(folder, key):
    """Found before memory is taken: 10**12 rows would need more than there is."""
    with pytest.raises(InputError, match=rf"must be 1000000000000, config\.json's {key}.*Received"):
        huggingface.read(folder("seqcls_3", **{key: 10**12}))


def test_labels(folder, tmp_path):
    names = {"1": "neutral", "0": "不好", "2": "good"}
    source = huggingface.read(folder("seqcls_3", id2label=names, classifier_dropout=0.3))
    assert source.labels == ("不好", "neutral", "good")
    assert source.model.get_layer("label_dropout").rate == 0.3
    huggingface.write(source, tmp_path / "back")
    described = json.loads((tmp_path / "back" / "config.json").read_text(encoding="utf-8"))
    assert described["id2label"] == names
    assert described["label2id"] == {"不好": 0, "neutral": 1, "good": 2}
    assert described["classifier_dropout"] == 0.3
    assert described["problem_type"] == "single_label_classification"
    placeholders = huggingface.read(folder("seqcls_3", id2label={"0": "LABEL_0", "1": "LABEL_1"}))
    assert placeholders.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    with pytest.raises(InputError, match=r"id2label must name the 3 classes"):
        huggingface.read(folder("seqcls_3", id2label={"0": "bad", "1": "good"}))


def test_several_labels_at_once(folder, tmp_path):
    kind = {"problem_type": "multi_label_classification"}
    source = huggingface.read(folder("seqcls_multilabel", **kind))
    assert source.settings == {"multi_label": True}
    huggingface.write(source, tmp_path / "back")
    described = json.loads((tmp_path / "back" / "config.json").read_text(encoding="utf-8"))
    assert described["problem_type"] == "multi_label_classification"


def test_classifier_needs_the_name_of_its_class(folder):
    with pytest.raises(InputError, match=r"config\.json: `architectures` must name the class"):
        huggingface.read(folder("seqcls_3", architectures=None))
    with pytest.raises(InputError, match=r"lacks qa_outputs\.\*, the head of BertForQuestion"):
        huggingface.read(folder("seqcls_3", architectures=["BertForQuestionAnswering"]))
    assert huggingface.read(folder("qa", architectures=None)).model.name == "span_classifier"


def test_casing(folder, tmp_path):
    where = folder("model")
    assert huggingface.read(where).tokenizer.get_config() == {
        "lowercase": True, "strip_accents": True, "split_cjk": True, "max_chars_per_word": 100,
    }  # fmt: skip
    casing = {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False}
    path = where / "tokenizer_config.json"
    path.write_text(json.dumps(casing | {"model_max_length": 40}), encoding="utf-8")
    source = huggingface.read(where)
    assert source.settings == {"max_sequence_length": 40}
    huggingface.write(source, tmp_path / "back")
    again = huggingface.read(tmp_path / "back")
    assert again.settings == {"max_sequence_length": 40}
    for tokenizer in (source.tokenizer, again.tokenizer):
        assert (tokenizer.lowercase, tokenizer.strip_accents, tokenizer.split_cjk) == (
            False, True, False)  # fmt: skip
    path.write_text('{"do_lower_case": "no"}', encoding="utf-8")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: do_lower_case must be"):
        huggingface.read(where)
    path.write_text('{"model_max_length": 1000000000000000019884624838656}', encoding="utf-8")
    assert huggingface.read(where).settings == {}


def test_tokenizer_json_alone(folder):
    where = folder("model", texts=False)
    with pytest.raises(InputError, match=r"vocab\.txt"):
        huggingface.read(where)
    normalizer = {"type": "BertNormalizer", "lowercase": False, "strip_accents": None,
                  "handle_chinese_chars": True}  # fmt: skip
    vocabulary = {token: i for i, token in reversed(list(enumerate(VOCABULARY)))}
    described = {"model": {"type": "WordPiece", "vocab": vocabulary}, "normalizer": normalizer}
    path = where / "tokenizer.json"
    path.write_text(json.dumps(described), encoding="utf-8")
    tokenizer = huggingface.read(where).tokenizer
    assert tokenizer.vocabulary == VOCABULARY
    assert not tokenizer.lowercase
    described["model"]["vocab"]["far"] = 10**12
    path.write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(InputError, match=r"tokenizer\.json: model\.vocab must give tokens the ids"):
        huggingface.read(where)


def test_vocabulary_longer_than_the_table(folder):
    where = folder("model")
    (where / "vocab.txt").write_text("\n".join([*VOCABULARY, "more"]), encoding="utf-8")
    with pytest.raises(InputError, match=r"vocabulary of 101 tokens must fit .* 100 rows"):
        huggingface.read(where)


# Damage.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("bert.encoder.layer.1.output.dense.bias"),
         r"model\.safetensors lacks bert\.encoder\.layer\.1\.output\.dense\.bias"),
        (lambda t: [t.pop(n) for n in list(t) if "layer.1." in n],
         r"model\.safetensors lacks bert\.encoder\.layer\.1\.\*"),
        (lambda t: t.pop("bert.pooler.dense.bias"), r"lacks bert\.pooler\.dense\.bias"),
        (lambda t: [t.pop(n) for n in list(t) if "pooler" in n], r"lacks bert\.pooler\.dense"),
        (lambda t: t.update(extra=np.zeros(1)), "holds the unexpected extra"),
        (lambda t: t.update({"classifier.bias": np.zeros(4, "float32")}),
         r"tensor classifier\.bias must have the shape \(3,\).*Received: \(4,\)"),
        (lambda t: t.update({"bert.encoder.layer.1.output.dense.weight": np.zeros((64, 31))}),
         r"layer\.1\.output\.dense\.weight must.*\(64, 32\).*\(31, 64\), \(64, 31\) as stored"),
        (lambda t: t.update({"classifier.bias": np.zeros(3, "int64")}),
         r"tensor classifier\.bias must hold floats. Received: dtype int64"),
        (lambda t: t.pop("classifier.weight"), r"must hold the matrix classifier\.weight"),
        (lambda t: (t.clear(), t.update(other=np.zeros(1))), r"must hold one embeddings\.word_"),
    ],
)  # fmt: skip
def test_wrong_tensors_are_named(folder, golden, change, message):
    tensors = golden("weights_tiny_seqcls_3")
    change(tensors)
    with pytest.raises(InputError, match=message):
        huggingface.read(folder("seqcls_3", tensors))


def test_not_strict_reports(folder, golden):
    tensors = golden("weights_tiny_seqcls_3") | {"extra": np.zeros(1, "float32")}
    tensors = {name: x for name, x in tensors.items() if "layer.1." not in name}
    _, report = huggingface.read_with_report(folder("seqcls_3", tensors), strict=False)
    assert len(report.missing) == 16
    assert report.unexpected == ["extra"]
    with pytest.raises(InputError, match=r"lacks bert\.encoder\.layer\.1.* and 11 more and holds"):
        report.check()


def safetensors(header, data=b"", length=None):
    """The bytes of a file with this header: {name: (dtype, shape, offsets)}."""
    if isinstance(header, dict):
        keys = ("dtype", "shape", "data_offsets")
        header = {name: dict(zip(keys, entry)) for name, entry in header.items()}
        header = json.dumps(header).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cut off"),
        (safetensors({"a": ("F32", [1], [0, 4])}, b"1234")[:30], "cut off"),
        (safetensors({"a": ("F32", [1], [0, 4])}, b"1234", 2**40), "cut off"),
        (safetensors({"a": ("F32", [1], [0, 4])}, b"1234", 2**63), "cut off"),
        (safetensors({"a": ("F32", [1], [0, 4])}, b"123"), "tensor a must"),
        (safetensors({"a": ("F32", [1], [0, 4])}, b"12345"), "1 bytes at its end"),
        (safetensors({"a": ("F32", [1], [0, 4]), "b": ("F32", [1], [2, 6])}, b"123456"),
         "tensor b must start at byte 4"),
        (safetensors({"a": ("F32", [1], [0, 4]), "b": ("F32", [1], [0, 4])}, b"12345678"),
         "tensor b must start at byte 4"),
        (safetensors({"a": ("F32", [1], [4, 8])}, b"12345678"), "tensor a must start at byte 0"),
        (safetensors({"a": ("F32", [2], [0, 4])}, b"1234"), "tensor a of shape"),
        (safetensors({"a": ("F32", [2**62, 8], [0, 4])}, b"1234"), "tensor a of shape"),
        (safetensors({"a": ("F32", [-1], [0, 4])}, b"1234"), "tensor a lacks"),
        (safetensors({"a": ("F32", [0, 2**70], [0, 0])}), "tensor a lacks"),
        (safetensors({"a": ("F32", [1])}, b"1234"), "tensor a lacks"),
        (safetensors({"a": ("O", [1], [0, 4])}, b"1234"), "tensor a must have one of the dtypes"),
        (safetensors({"a": (["F32"], [1], [0, 4])}, b"1234"), "tensor a must have one of the"),
        (safetensors(b"{]"), "isn't JSON"),
        (safetensors(b"[" * 100_000), "isn't JSON"),
        (safetensors(b"\xff\xfe\xfd"), "isn't JSON"),
        (safetensors(b"[]"), "must be an object"),
    ],
)  # fmt: skip
def test_malformed_safetensors(folder, content, message):
    where = folder("model", {})
    (where / "model.safetensors").write_bytes(content)
    start = time.perf_counter()
    with pytest.raises(InputError, match=rf"model\.safetensors.*{message}"):
        huggingface.read(where)
    assert time.perf_counter() - start < 2


class Malicious:
    """Its pickle would make a file when it's read."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (pathlib.Path.touch, (self.marker,))


def test_malicious_pickle_isnt_run(folder, tmp_path):
    torch = pytest.importorskip("torch")
    where, marker = folder("model", {}), tmp_path / "marker"
    for content in (Malicious(marker), {"embeddings.word_embeddings.weight": Malicious(marker)}):
        torch.save(content, where / "pytorch_model.bin")
        start = time.perf_counter()
        with pytest.raises(InputError, match=r"pytorch_model\.bin is damaged or holds more than"):
            huggingface.read(where)
        assert time.perf_counter() - start < 2
        assert not marker.exists()
    (where / "pytorch_model.bin").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(InputError, match=r"pytorch_model\.bin is damaged"):
        huggingface.read(where)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file(folder, name):
    where = folder("model")
    (where / name).unlink()
    with pytest.raises(InputError, match=r"isn't a Hugging Face folder"):
        huggingface.read(where)


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000, "\udcff"])
def test_damaged_config(folder, content):
    where = folder("model")
    (where / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=r"config\.json"):
        huggingface.read(where)


# What's written.


def test_only_its_own_folder_is_replaced(folder, tmp_path):
    source = huggingface.read(folder("model"))
    huggingface.write(source, tmp_path / "back")
    huggingface.write(source, tmp_path / "back")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "source"]
    (tmp_path / "back" / "README.md").write_text("mine", encoding="utf-8")
    preset.write(source, tmp_path / "preset")
    for name in ("back", "preset"):
        with pytest.raises(InputError, match=f"{name} exists and holds more than a model"):
            huggingface.write(source, tmp_path / name)
    assert (tmp_path / "back" / "README.md").exists()


def test_own_models_are_refused(folder, tmp_path):
    source = huggingface.read(folder("model"))
    own = keras.Model(source.encoder.input, source.encoder.output, name="own")
    changed = keras_bert.Preset(source.config, source.encoder, source.tokenizer, own)
    with pytest.raises(
        ValueError, match=r"`preset\.model` must be .* Received: a model named 'own'"
    ):
        huggingface.write(changed, tmp_path / "back")
    assert not (tmp_path / "back").exists()
