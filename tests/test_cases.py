"""Faults that users of other BERTs reported, as cases with their right values.

A test's docstring names its case. The cases lie beside the checkout in `../shared/cases`; what
other files test already isn't repeated here.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import time
import zipfile

import h5py
import keras
import numpy as np
import pytest
from conftest import TESTS
from keras import ops
from safetensors.numpy import load_file, save_file
from test_golden import formula_name, formula_weights

import keras_bert
from keras_bert.checkpoints import huggingface
from keras_bert.checkpoints.preset import TASKS
from keras_bert.errors import InputError
from keras_bert.layers import EncoderBlock

# Importing torch's compiler warns of a part of torch.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")

BACKEND = keras.backend.backend()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIAL, *(f"w{i}" for i in range(15))]
NAMES = ("token_ids", "segment_ids", "padding_mask")
FORMULA = {
    "vocabulary_size": 20, "num_layers": 2, "num_heads": 2, "hidden_dim": 8,
    "intermediate_dim": 16, "max_sequence_length": 12,
}  # fmt: skip


@pytest.fixture
def case(shared):
    """A case's input and what is expected of it."""
    path = shared("cases/cases.jsonl")

    def find(name):
        for line in path.read_text(encoding="utf-8").split("\n"):
            if line and json.loads(line)["id"] == name:
                found = json.loads(line)
                return found["input"], found["expected"]
        raise KeyError(name)

    return find


def encoder_of(policy="float32", **numbers):
    """The float64 BERT of `golden/formula_bert.json`, as far as `numbers` leave its shapes."""
    keras.config.set_dtype_policy(policy)
    try:
        encoder = keras_bert.bert(keras_bert.BertConfig(**FORMULA | numbers))
    finally:
        keras.config.set_dtype_policy("float32")
    stored = json.loads((TESTS / "golden" / "formula_bert.json").read_text(encoding="utf-8"))
    weights = formula_weights(stored["order"])
    for weight in encoder.weights:
        value = weights[formula_name(weight.path)]
        if value.shape == tuple(weight.shape):
            weight.assign(value)
    return encoder


def preset_of(task="pretraining", **arguments):
    encoder = encoder_of()
    model = encoder if task == "encoder" else TASKS[task](encoder, **arguments)
    config = keras_bert.BertConfig(**FORMULA)
    return keras_bert.Preset(config, encoder, keras_bert.WordPiece(VOCABULARY), model)


def rows(token_ids, segment_ids=None, padding_mask=None):
    token_ids = np.array(token_ids, "int32")
    segments = 0 * token_ids if segment_ids is None else np.array(segment_ids, "int32")
    mask = 0 * token_ids + 1 if padding_mask is None else np.array(padding_mask, "int32")
    return dict(zip(NAMES, (token_ids, segments, mask)))


def as_float(x):
    return np.asarray(ops.convert_to_numpy(ops.cast(x, "float32")))


# The model's numbers.


def test_both_gelus(case):
    """NUM-02."""
    given, expected = case("NUM-02")
    x = np.array(given["x"], "float32")
    for name, key in (("gelu", "erf"), ("gelu_new", "tanh"), ("gelu_tanh", "tanh")):
        ours = as_float(EncoderBlock(8, 2, 16, activation=name).activation(x))
        np.testing.assert_allclose(ours, expected[key], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("policy", "atol"), [("float32", 1e-5), ("mixed_bfloat16", 2e-2)])
def test_padding_to_any_length(case, policy, atol):
    """NUM-04."""
    given, _ = case("NUM-04")
    first = case("NUM-01")[0]
    ids, segments = first["ids"][0][:7], first["segments"][0][:7]
    encoder = encoder_of(policy)
    alone = encoder(rows([ids], [segments]))
    for length in given["lengths"]:
        more = [0] * (length - 7)
        padded = encoder(rows([ids + more], [segments + more], [[1] * 7 + more]))
        for name in alone:
            ours, theirs = as_float(padded[name]), as_float(alone[name])
            ours = ours[:, :7] if name == "sequence_output" else ours
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


def gradients(model, inputs):
    """Of the squared outputs' sum by every weight, as float32."""
    weights = model.trainable_variables

    def loss(outputs):
        return sum(ops.sum(ops.square(ops.cast(x, "float32"))) for x in outputs.values())

    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss(model(inputs))
        found = tape.gradient(value, [weight.value for weight in weights])
        return [as_float(tf.convert_to_tensor(x)) for x in found]
    if BACKEND == "jax":
        import jax

        fixed = [weight.value for weight in model.non_trainable_variables]

        def of(values):
            return loss(model.stateless_call(values, fixed, inputs)[0])

        return [as_float(x) for x in jax.jit(jax.grad(of))([weight.value for weight in weights])]
    loss(model(inputs)).backward()
    return [as_float(weight.value.grad) for weight in weights]


def test_half_precision_is_finite(case):
    """NUM-06: half of a row padded, and a row that's nothing but padding."""
    given, expected = case("NUM-06")
    mask = np.array([[1] * 5 + [0] * 5, [0] * 10, [1] * 10], "int32")
    inputs = rows(np.arange(30).reshape(3, 10) % 20, padding_mask=mask)
    for policy in given["dtype"]:
        encoder = encoder_of(policy, num_layers=1, dropout=0.0, attention_dropout=0.0)
        outputs = encoder.predict(inputs, verbose=0)
        assert all(np.isfinite(as_float(x)).all() for x in outputs.values()), policy
        assert all(np.isfinite(x).all() for x in gradients(encoder, inputs)), policy
        block = encoder.get_layer("block_0")
        x = ops.cast(np.random.default_rng(0).normal(size=(3, 10, 8)), block.compute_dtype)
        maps = as_float(block.attention.probabilities(x, ops.convert_to_tensor(mask)))
        assert maps[0, :, :, 5:].max() <= expected["masked_prob_max"], policy
        np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-2)


def test_layer_norm_of_a_constant(case):
    """NUM-08."""
    for policy in case("NUM-08")[0]["dtype"]:
        norm = EncoderBlock(8, 2, 16, dtype=policy).attention_norm
        output = as_float(norm(ops.cast(np.full((1, 1, 8), 3.0), norm.compute_dtype)))
        np.testing.assert_array_equal(output, 0)


def test_any_batch_size(case):
    """NUM-09."""
    encoder = encoder_of(num_layers=1)
    inputs = rows(np.random.default_rng(0).integers(0, 20, (7, 10)))
    alone = [encoder({k: x[i : i + 1] for k, x in inputs.items()}) for i in range(7)]
    for size in case("NUM-09")[0]["batch_sizes"]:
        for name, output in encoder({k: x[:size] for k, x in inputs.items()}).items():
            expected = np.concatenate([as_float(row[name]) for row in alone[:size]])
            np.testing.assert_allclose(as_float(output), expected, rtol=0, atol=1e-5)


def run(mode, model, inputs):
    """The outputs, or the message of what was raised."""
    try:
        if mode == "eager":
            outputs = model(inputs)
        else:
            model.compile(jit_compile=mode == "jit_compile")
            outputs = model.predict(inputs, verbose=0)
    except Exception as error:  # each backend has its own
        return str(error)
    return {name: as_float(x) for name, x in outputs.items()}


@pytest.mark.parametrize("mode", ["eager", "graph", "jit_compile"])
def test_ids_without_a_row(case, mode):
    """NUM-11: an error or NaN, and never another token's vector."""
    if mode == "jit_compile" and BACKEND == "torch" and not shutil.which("g++"):
        pytest.skip("torch.compile needs a compiler of C++, and there's no g++")
    given, _ = case("NUM-11")
    more = [given["vocab"], -given["vocab"], 2**31 - 1, -(2**31)] if mode == "eager" else []
    for wrong in [*given["ids"], *more]:
        encoder = encoder_of(num_layers=1, vocabulary_size=given["vocab"])
        result = run(mode, encoder, rows([[1, wrong, 2]]))
        if mode == "eager":
            expected = rf"token_embedding must be in [0, 5), its rows. Received: {wrong}."
            assert expected in result
        elif isinstance(result, str):
            assert "in [0, 5)" in result  # the kernel's own words, or ours
        else:
            assert np.isnan(result["sequence_output"]).all()
            assert np.isnan(result["pooled_output"]).all()
    assert isinstance(run(mode, encoder_of(num_layers=1), rows([[0, 19]])), dict)


@pytest.mark.parametrize("mode", ["eager", "graph", "jit_compile"])
@pytest.mark.parametrize("wrong", [-1, 3])
def test_masked_positions_beyond_the_sequence(mode, wrong):
    """NUM-11, of the head's positions."""
    if mode == "jit_compile" and BACKEND == "torch" and not shutil.which("g++"):
        pytest.skip("torch.compile needs a compiler of C++, and there's no g++")
    task = keras_bert.tasks.masked_lm(encoder_of(num_layers=1))
    model = keras.Model(task.input, task.output)
    inputs = rows([[1, 2, 3]]) | {"mask_positions": np.array([[1, wrong]], "int32")}
    result = run(mode, model, inputs)
    if mode == "eager":
        assert f"the sequence must be in [0, 3), its rows. Received: {wrong}." in result
    elif isinstance(result, str):
        assert "in [0, 3)" in result
    else:
        assert np.isfinite(result["masked_lm"][:, 0]).all()
        assert np.isnan(result["masked_lm"][:, 1]).all()


@pytest.mark.parametrize("mode", ["eager", "graph", "jit_compile"])
def test_positions_beyond_the_table(mode):
    """NUM-11, of the position table: 13 tokens where it has 12 rows."""
    if mode == "jit_compile" and BACKEND == "torch" and not shutil.which("g++"):
        pytest.skip("torch.compile needs a compiler of C++, and there's no g++")
    result = run(mode, encoder_of(num_layers=1), rows([[1] * 13]))
    if isinstance(result, str):
        assert "[0, 12)" in result or "13 tokens" in result
    else:
        assert np.isnan(result["sequence_output"]).all()


def test_a_mixed_policy_keeps_its_dtype():
    encoder = encoder_of("mixed_bfloat16")
    assert encoder.get_layer("token_embedding")(np.array([[1]])).dtype == ops.cast(
        0, "bfloat16").dtype  # fmt: skip


@pytest.mark.parametrize("key", ["token_ids", "segment_ids"])
def test_records_with_wrong_ids(tmp_path, key):
    """NUM-11: data of other origin is refused on the host, before a step runs."""
    tf = pytest.importorskip("tensorflow")
    from keras_bert.data import batches, records
    from keras_bert.data.examples import Example

    example = Example([2, 5, 3, 6, 3], [0, 0, 0, 1, 1], 0, (0, 0))
    getattr(example, key)[1] = 20
    shards = records.write_shards([example] * 3, tmp_path, 1)
    records.write_manifest(
        tmp_path, settings={"max_sequence_length": 8}, tokenizer=keras_bert.WordPiece(VOCABULARY),
        counts={"examples": 3}, shards=shards,
    )  # fmt: skip
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{key} of a record must be in"):
        next(iter(batches.pretraining(tmp_path, 2)))


def test_any_number_of_segments(case):
    """NUM-12."""
    given, expected = case("NUM-12")
    assert expected["omitted_equals_zeros"]
    for size in given["type_vocab_size"]:
        model = keras_bert.tasks.next_sentence(encoder_of(num_segments=size))
        inputs = rows([[2, 5, 3]])
        zeros = as_float(model(inputs)["next_sentence"])
        left_out = {name: x for name, x in inputs.items() if name != "segment_ids"}
        np.testing.assert_array_equal(as_float(model(left_out)["next_sentence"]), zeros)
        assert np.isfinite(as_float(model(inputs | {"segment_ids": zeros_of(size - 1)})
                                    ["next_sentence"])).all()  # fmt: skip
        for wrong in (size, -1):
            with pytest.raises(ValueError, match=rf"segment_embedding.*\[0, {size}\).*: {wrong}"):
                model(inputs | {"segment_ids": zeros_of(wrong)})


def zeros_of(last):
    return np.array([[0, 0, last]], "int32")


def test_parameter_counts_of_the_releases(case):
    """NUM-13: by the first blocks and tokens, each of which adds the same number."""
    given, expected = case("NUM-13")
    counts = {}
    for size, width in (("base", 768), ("large", 1024)):
        for layers in (1, 2):
            config = keras_bert.BertConfig.of_size(size, vocabulary_size=8, num_layers=layers)
            encoder = keras_bert.bert(config)
            model = keras_bert.tasks.pretraining(encoder)
            counts[size, layers] = np.array([encoder.count_params(), model.count_params()])
        counts[size, "token"] = np.array([width, width + 1])  # the decoder is tied
    for name, *totals in zip(given["configs"], expected["backbone"], expected["with_mlm_nsp"]):
        kind, tokens = name.split(" ")
        size = "large" if "large" in kind else "base"
        one, block = counts[size, 1], counts[size, 2] - counts[size, 1]
        num_blocks = keras_bert.BertConfig.of_size(size).num_layers
        total = one + (num_blocks - 1) * block + (int(tokens) - 8) * counts[size, "token"]
        assert total.tolist() == totals, name


def test_width_and_heads(case):
    """NUM-15."""
    given, _ = case("NUM-15")
    numbers = {"hidden_dim": given["hidden"], "num_heads": given["heads"]}
    with pytest.raises(ValueError, match="hidden_dim=8, num_heads=3"):
        keras_bert.BertConfig(**numbers)
    with pytest.raises(ValueError, match="hidden_dim=8, num_heads=3"):
        EncoderBlock(intermediate_dim=16, **numbers)


def test_inference_has_no_dropout(case, tmp_path):
    """NUM-16."""
    calls = range(case("NUM-16")[0]["calls"])
    preset = preset_of("text_classifier", num_classes=2, dropout=0.5)
    preset = dataclasses.replace(preset, labels=("no", "yes"))
    inputs = rows([[2, 5, 6, 3]])
    modes = {
        "predict": lambda: preset.model.predict(inputs, verbose=0)["label"],
        "call": lambda: as_float(preset.model(inputs)["label"]),
    }
    if BACKEND == "tensorflow":
        import tensorflow as tf

        target = keras_bert.export_saved_model(preset, tmp_path / "export")
        exported = tf.saved_model.load(str(target)).signatures["ids"]
        tensors = {name: tf.constant(x) for name, x in inputs.items()}
        modes["exported"] = lambda: exported(**tensors)["scores"].numpy()
    for name, call in modes.items():
        first, *others = [call() for _ in calls]
        for other in others:
            np.testing.assert_array_equal(other, first, err_msg=name)


@pytest.mark.parametrize("task", ["encoder", "text_classifier"])
def test_training_has_dropout(task):
    """NUM-16's other half."""
    model = preset_of(task, **({} if task == "encoder" else {"num_classes": 2})).model
    inputs = rows([[2, 5, 6, 3]])
    name = "pooled_output" if task == "encoder" else "label"
    trained, again = (as_float(model(inputs, training=True)[name]) for _ in "ab")
    assert np.abs(trained - again).max() > 1e-6


# Saving and loading.


@pytest.mark.parametrize("task", ["encoder", *TASKS])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_model_configs_round_trip(task, policy):
    """SAV-02, of models; layers are in `test_layers.py`."""
    encoder = encoder_of(policy)
    arguments = {"num_classes": 3} if task in ("text_classifier", "token_classifier") else {}
    model = encoder if task == "encoder" else TASKS[task](encoder, **arguments)
    first = json.dumps(model.get_config(), sort_keys=True)
    again = type(model).from_config(json.loads(first))
    second = json.dumps(again.get_config(), sort_keys=True)
    assert second == first
    assert [w.path for w in again.weights] == [w.path for w in model.weights]
    for ours, theirs in zip(again.layers, model.layers):
        # These compute nothing of their own.
        if not isinstance(ours, (keras.layers.InputLayer, keras.Model)):
            assert ours.dtype_policy.name == theirs.dtype_policy.name
    assert type(keras.models.clone_model(model)) is type(model)


def test_other_configs_round_trip(tmp_path):
    """SAV-02, of what isn't a layer or a model."""
    schedule = keras_bert.training.WarmupLinear(1e-3, 3, 12)
    again = type(schedule).from_config(json.loads(json.dumps(schedule.get_config())))
    assert again.get_config() == schedule.get_config()
    optimizer = keras_bert.training.AdamW(1e-3)
    again = type(optimizer).from_config(json.loads(json.dumps(optimizer.get_config())))
    assert again.get_config() == optimizer.get_config()
    tokenizer = keras_bert.WordPiece(VOCABULARY, lowercase=False, max_chars_per_word=50)
    tokenizer.save_vocabulary(tmp_path / "vocab.txt")
    config = json.loads(json.dumps(tokenizer.get_config()))
    again = keras_bert.WordPiece(tmp_path / "vocab.txt", **config)
    assert (again.get_config(), again.vocabulary) == (config, VOCABULARY)
    numbers = keras_bert.BertConfig(**FORMULA)
    stored = json.loads(json.dumps(dataclasses.asdict(numbers)))
    assert keras_bert.BertConfig.from_dict(stored) == numbers


def test_a_mask_of_keras_changes_nothing(tmp_path):
    """SAV-05: only the explicit padding_mask counts, after loading too."""
    models = []
    for mask_zero in (False, True):
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in NAMES[::2]}
        x = keras.layers.Embedding(20, 8, mask_zero=mask_zero, name="words")(inputs["token_ids"])
        x = EncoderBlock(8, 2, 16, name="block")(x, padding_mask=inputs["padding_mask"])
        models.append(keras.Model(inputs, x))
    models[1].set_weights(models[0].get_weights())
    batch = {name: x for name, x in rows([[2, 5, 0, 3]]).items() if name in NAMES[::2]}
    first, second = (model.predict(batch, verbose=0) for model in models)
    np.testing.assert_array_equal(first, second)

    encoder = encoder_of()
    encoder.save(tmp_path / "encoder.keras")
    loaded = keras.saving.load_model(tmp_path / "encoder.keras")
    alone = as_float(loaded(rows([[2, 5, 3]]))["sequence_output"])
    padded = loaded(rows([[2, 5, 3, 0, 0]], padding_mask=[[1, 1, 1, 0, 0]]))["sequence_output"]
    np.testing.assert_allclose(as_float(padded)[:, :3], alone, rtol=0, atol=1e-5)


# Files of strangers: refused soon, by name, with nothing run or written.


@pytest.fixture
def refuses(tmp_path):
    """Checks that loading a folder fails as it should, and leaves all files as they were."""

    def listing():
        return {path: path.lstat().st_size for path in sorted(tmp_path.rglob("*"))}

    def check(path, message, load=keras_bert.load):
        before, start = listing(), time.perf_counter()
        with pytest.raises(InputError, match=message):
            load(path)
        assert time.perf_counter() - start < 2
        assert listing() == before

    return check


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    huggingface.write(preset_of(), folder)
    return folder


def safetensors(header, data=b""):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (safetensors({"a": ENTRY | {"shape": {}}}, b"1234"), "tensor a lacks its dtype, shape"),
        (safetensors({"a": ENTRY | {"shape": "1"}}, b"1234"), "tensor a lacks its dtype, shape"),
        (safetensors({"a": ENTRY | {"shape": [1] * 100}}, b"1234"), "tensor a lacks its dtype"),
        (safetensors({"a": ENTRY | {"shape": [1.0]}}, b"1234"), "tensor a lacks its dtype"),
        (safetensors({"a": ENTRY | {"shape": [True]}}, b"1234"), "tensor a lacks its dtype"),
        (safetensors({"a": ENTRY | {"data_offsets": [0, 4, 8]}}, b"1234"), "tensor a lacks"),
        (safetensors({"a": ENTRY | {"data_offsets": [4, 0]}}, b"1234"), "tensor a .*lacks"),
        (safetensors({"a": ENTRY | {"data_offsets": [-4, 0]}}, b"1234"), "tensor a .*lacks"),
        (safetensors({"a": ENTRY | {"dtype": "F8_E4M3"}}, b"1234"), "tensor a must have one of"),
        (safetensors({"a": 3}, b"1234"), "tensor a lacks its dtype"),
        (safetensors({"a": None}, b"1234"), "tensor a lacks its dtype"),
        (safetensors({"a": []}, b"1234"), "tensor a lacks its dtype"),
        (safetensors(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, '
                     b'"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', b"1234"),
         "the key 'a' is there twice"),
        (safetensors(b'{"a": {"shape": [2], "dtype": "F32", "shape": [1]}}'),
         "the key 'shape' is there twice"),
        (safetensors(b'{"a": {"shape": [' + b"1" * 5000 + b"]}}"), "isn't JSON"),
        (safetensors(b'{"\xff": 1}'), "isn't JSON"),
        (safetensors(b"null"), "must be an object"),
        (safetensors(b""), "isn't JSON"),
        (safetensors({"__metadata__": {}}), r"must hold one embeddings\.word_embeddings"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "cut off"),
    ],
)  # fmt: skip
def test_malformed_safetensors(source, refuses, content, message):
    (source / "model.safetensors").write_bytes(content)
    refuses(source, rf"model\.safetensors.*{message.replace('.*lacks', '(lacks|must)')}")


def test_header_larger_than_its_limit(source, refuses):
    """It isn't even read: the file is nothing but a promise of bytes."""
    with (source / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 10**9))
        file.truncate(10**9 + 8)
    refuses(source, r"model\.safetensors.*at most 100000000 bytes. Received: 1000000000")


def test_tensors_larger_than_their_file(source, refuses):
    """The file claims what isn't in it, and the header what isn't in the file."""
    header = {"a": {"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 2**42]}}
    (source / "model.safetensors").write_bytes(safetensors(header, b"1234"))
    refuses(source, r"tensor a must start at byte 0 of 4 and end within")


def test_index_that_leads_elsewhere(source, refuses, tmp_path):
    """SEC-04's kind: a shard by a path."""
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").rename(tmp_path / "evil.safetensors")
    (source / "shard.safetensors").symlink_to(tmp_path / "missing")
    index = source / "model.safetensors.index.json"
    for shard in ("../evil.safetensors", str(tmp_path / "evil.safetensors"), "", ".", "..",
                  "./../evil.safetensors", "sub/../../evil.safetensors", "..\\evil.safetensors",
                  "shard.safetensors", "a\0b", "~/evil", "file:///etc/passwd"):  # fmt: skip
        index.write_text(json.dumps({"weight_map": dict.fromkeys(tensors, shard)}), "utf-8")
        refuses(source, r"index\.json names the file .*, which isn't in its folder")
    for places in ([], {"a": 3}, {"a": ["../evil"]}, None, "../evil"):
        index.write_text(json.dumps({"weight_map": places}), "utf-8")
        refuses(source, r"index\.json: weight_map must map tensors to files")


def test_shards_that_hold_a_tensor_twice(source, refuses):
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    name = "cls.predictions.bias"
    save_file(tensors, source / "a.safetensors")
    save_file({name: tensors[name] + 1, "extra": tensors[name]}, source / "b.safetensors")
    places = dict.fromkeys(tensors, "a.safetensors") | {"extra": "b.safetensors"}
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}), "utf-8")
    refuses(source, r"tensor cls\.predictions\.bias isn't in weight_map: b\.safetensors")


def test_tensors_that_are_no_arrays(source, refuses):
    """SEC-01's kind: what `weights_only=True` lets through and isn't a plain tensor."""
    torch = pytest.importorskip("torch")
    (source / "model.safetensors").unlink()
    plain = {"cls.predictions.bias": torch.zeros(3)}
    for value, message in (
        (torch.zeros(3, device="meta"), r"tensor cls\.predictions\.bias must be a plain array"),
        (torch.eye(3).to_sparse(), r"cls\.predictions\.bias must be a plain array|holds more"),
        ({"nested": torch.zeros(3)}, r"'cls\.predictions\.bias' must be a tensor. Received: dict"),
        (None, r"'cls\.predictions\.bias' must be a tensor. Received: NoneType"),
    ):
        torch.save(plain | {"cls.predictions.bias": value}, source / "pytorch_model.bin")
        refuses(source, rf"pytorch_model\.bin.*{message}")
    torch.save([torch.zeros(3)], source / "pytorch_model.bin")
    refuses(source, r"pytorch_model\.bin must hold tensors by name. Received: list")


@pytest.fixture
def own(tmp_path):
    preset = dataclasses.replace(
        preset_of("text_classifier", num_classes=2), labels=("no", "yes")
    )  # fmt: skip
    keras_bert.save(preset, tmp_path / "own")
    return tmp_path / "own"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["config"].update(vocabulary_size=10**12), "vocabulary_size=1000000000000"),
        (lambda d: d["config"].update(max_sequence_length=10**9), "max_sequence_length=10"),
        (lambda d: d["config"].update(num_layers=10**9), "num_layers=1000000000"),
        (lambda d: d["config"].update(hidden_dim=2 * 10**9), "hidden_dim=2000000000"),
        (lambda d: d["config"].update(num_segments=10**9), "num_segments=1000000000"),
        (lambda d: d["task"]["arguments"].update(num_classes=10**12), "num_classes=10"),
        (lambda d: d["config"].update(activation="os.system"), r"os\.system"),
        (lambda d: d["config"].update(activation={"class_name": "Lambda"}), "must be a name"),
        (lambda d: d.update(architecture="os"), "os"),
        (lambda d: d["task"].update(name="os.system"), r"os\.system"),
        (lambda d: d["task"].update(arguments=["x"]), "list"),
        (lambda d: d.update(config="x"), "no such number"),
    ],
)
def test_presets_of_strangers(own, refuses, change, message):
    """SEC-02's kind: numbers and names that our own preset can't have."""
    path = own / "config.json"
    described = json.loads(path.read_text(encoding="utf-8"))
    change(described)
    path.write_text(json.dumps(described), encoding="utf-8")
    refuses(own, rf"config\.json.*{message}")


def test_nested_beyond_reason(own, source, refuses):
    for folder in (own, source):
        (folder / "config.json").write_bytes(b"[" * 200_000)
        refuses(folder, r"config\.json")


@pytest.mark.parametrize("kind", ["soft", "external", "external data", "chunks that aren't there"])
def test_weights_that_lead_elsewhere(own, refuses, tmp_path, kind):
    (tmp_path / "elsewhere.bin").write_bytes(b"\0" * 8)
    with h5py.File(own / "weights.h5", "r+") as file:
        del file["label/bias"]
        if kind == "soft":
            file["label/bias"] = h5py.SoftLink("/pooler/bias")
        elif kind == "external":
            file["label/bias"] = h5py.ExternalLink(str(tmp_path / "elsewhere.h5"), "x")
        elif kind == "external data":
            place = [(str(tmp_path / "elsewhere.bin"), 0, 8)]
            file.create_dataset("label/bias", (2,), "f4", external=place)
        else:
            file.create_dataset("label/bias", (10**12,), "f4", chunks=(1000,))
    refuses(own, r"weights\.h5.*label/bias")


def keras_archive(path, config):
    """A `.keras` file with this config and no weights."""
    weights = io.BytesIO()
    with h5py.File(weights, "w"):
        pass
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("metadata.json", json.dumps({"keras_version": keras.__version__}))
        archive.writestr("model.weights.h5", weights.getvalue())


def sequential(*layers):
    return {"module": "keras", "class_name": "Sequential", "registered_name": None,
            "config": {"name": "evil", "layers": list(layers)}}  # fmt: skip


def test_keras_archives_run_nothing(case, tmp_path, monkeypatch, refuses):
    """SEC-02, and that our classes open no door: an activation is looked up by its name."""
    given, expected = case("SEC-02")
    assert expected == {"marker_created": False, "all_raise": True}
    marker = tmp_path / "marker"
    monkeypatch.chdir(tmp_path)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Lambda(lambda x: x)])
    model.save(tmp_path / "lambda.keras")
    command = f"touch {marker}"
    system = {"module": "os", "class_name": "system", "registered_name": "system",
              "config": command}  # fmt: skip
    function = {"module": "os", "class_name": "function", "registered_name": "function",
                "config": "system"}  # fmt: skip
    unsafe = {"module": "keras.config", "class_name": "function", "registered_name": "function",
              "config": "enable_unsafe_deserialization"}  # fmt: skip
    block = keras.saving.serialize_keras_object(EncoderBlock(8, 2, 16))
    keras_archive(tmp_path / "system.keras", sequential(system))
    keras_archive(tmp_path / "unsafe.keras", sequential(unsafe, *_layers_of(model)))
    for name, wrong in (("name", "system"), ("function", function), ("class", system)):
        evil = json.loads(json.dumps(block))
        evil["config"]["activation"] = wrong
        keras_archive(tmp_path / f"activation_{name}.keras", sequential(evil))
    # The older format: the whole model in one HDF5 file.
    with h5py.File(tmp_path / "lambda.h5", "w") as file:
        described = {"class_name": "Sequential", "config": {"layers": _layers_of(model)}}
        file.attrs["model_config"] = json.dumps(described)
        file.create_group("model_weights")
    archives = sorted([*tmp_path.glob("*.keras"), *tmp_path.glob("*.h5")])
    assert len(archives) >= len(given["files"])
    for path in archives:
        with pytest.raises((ValueError, TypeError)):
            keras.saving.load_model(path)
        refuses(path, "isn't a folder")
        folder = tmp_path / f"folder_of_{path.name}"
        folder.mkdir()
        (folder / "weights.h5").write_bytes(path.read_bytes())
        refuses(folder, "isn't a preset")
    assert not marker.exists()


def _layers_of(model):
    return json.loads(json.dumps(model.get_config(), default=str))["layers"]


def test_archives_are_not_unpacked(tmp_path, refuses):
    """SEC-04: no file of an archive gets anywhere, since none is unpacked."""
    for name, member in (("up.tar", "../evil"), ("absolute.tar", str(tmp_path / "evil"))):
        with tarfile.open(tmp_path / name, "w") as archive:
            archive.addfile(tarfile.TarInfo(member), io.BytesIO())
    with tarfile.open(tmp_path / "link.tar", "w") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("link/evil"), io.BytesIO())
    with zipfile.ZipFile(tmp_path / "windows.zip", "w") as archive:
        archive.writestr("..\\evil", b"")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.safetensors", b"\0" * 10_000_000)
    for path in sorted(tmp_path.iterdir()):
        refuses(path, "isn't a folder")
    assert not list(tmp_path.rglob("evil*"))


FORBIDDEN = {"pickle", "cPickle", "dill", "marshal", "shelve", "joblib", "yaml", "cloudpickle"}
SOCKETS = """
import importlib, pkgutil, socket, sys
def refuse(*args, **kwargs):
    raise RuntimeError("a socket was opened")
socket.socket.connect = socket.socket.connect_ex = socket.socket.bind = refuse
socket.create_connection = socket.getaddrinfo = refuse
import keras_bert
for module in pkgutil.walk_packages(keras_bert.__path__, "keras_bert."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def test_nothing_of_ours_unpickles():
    """SEC-07, and SEC-01's scan, of the recipes as well."""
    root = TESTS.parent
    paths = [*(root / "keras_bert").rglob("*.py"), *(root / "recipes").glob("*.py")]
    assert len(paths) > 40
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.split(".")[0] for name in names} & FORBIDDEN, path
            if isinstance(node, ast.Attribute) and node.attr in ("loads", "load"):
                base = node.value.id if isinstance(node.value, ast.Name) else ""
                assert base not in FORBIDDEN, path
                assert (base, path.name) == ("torch", "huggingface.py") or base != "torch", path


def test_importing_opens_no_socket():
    """SEC-07."""
    subprocess.run([sys.executable, "-c", SOCKETS], check=True, env=os.environ)


# Inputs in other forms.


def test_inputs_in_any_order(case):
    """ROB-07."""
    _, expected = case("ROB-07")
    assert expected["permuted"] == "same output"
    preset = preset_of("next_sentence")
    inputs = rows([[2, 5, 6, 3]], [[0, 0, 1, 1]])

    def outputs(inputs):
        return as_float(preset.model(inputs)["next_sentence"])

    first = outputs(inputs)
    permuted = {name: inputs[name] for name in reversed(inputs)}
    np.testing.assert_array_equal(outputs(permuted), first)
    zeros = outputs(inputs | {"segment_ids": 0 * inputs["segment_ids"]})
    left_out = {name: x for name, x in inputs.items() if name != "segment_ids"}
    np.testing.assert_array_equal(outputs(left_out), zeros)
    assert np.abs(zeros - first).max() > 1e-6


def test_masks_of_any_dtype(case):
    """ROB-08: 1, True or 1.0 is a token."""
    encoder = encoder_of()
    inputs = rows([[2, 5, 6, 3, 0, 0]], padding_mask=[[1, 1, 1, 1, 0, 0]])
    first = as_float(encoder(inputs)["sequence_output"])
    block = encoder.get_layer("block_0")
    x = ops.convert_to_tensor(np.random.default_rng(0).normal(size=(1, 6, 8)).astype("float32"))
    of_block = as_float(block(x, padding_mask=ops.convert_to_tensor(inputs["padding_mask"])))
    for dtype in [*case("ROB-08")[0]["masks"][:3], "int64", "uint8"]:
        mask = inputs["padding_mask"].astype(dtype)
        again = as_float(encoder(inputs | {"padding_mask": mask})["sequence_output"])
        np.testing.assert_array_equal(again, first, err_msg=dtype)
        again = as_float(block(x, padding_mask=ops.convert_to_tensor(mask)))
        np.testing.assert_allclose(again, of_block, rtol=0, atol=1e-6, err_msg=dtype)
    inverted = 1 - inputs["padding_mask"]
    other = as_float(encoder(inputs | {"padding_mask": inverted})["sequence_output"])
    assert np.abs(other - first).max() > 1e-3
    assert "1 at tokens" in (importlib.import_module("keras_bert.models.bert").bert.__doc__ or "")


def test_fewer_rows_than_a_batch():
    """ROB-09: a small set is one small batch, or one that repeats; no epoch has no step."""
    pytest.importorskip("tensorflow")
    from keras_bert.data.texts import LabelledText, classification

    texts = [LabelledText("a", "w1 w2", i) for i in range(3)]
    dataset = classification(texts, keras_bert.WordPiece(VOCABULARY), ["a", "b"], 8)
    [(inputs, labels, _)] = list(dataset)
    assert inputs["token_ids"].shape[0] == 3
    assert labels["label"].shape == (3,)


def test_an_inverted_mask_is_noticed():
    """ROB-08: 1 is a real token."""
    encoder = keras_bert.bert(keras_bert.BertConfig.of_size("tiny", vocabulary_size=30))
    model = keras_bert.tasks.text_classifier(encoder, 3)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    inverted = np.array([[0, 0, 1, 1], [0, 0, 0, 0]])
    inputs = {"token_ids": np.ones((2, 4), "int32"), "padding_mask": inverted}
    with pytest.raises(ValueError, match="0 at the first position of every row"):
        model.fit(inputs, np.zeros(2, "int32"), verbose=0)


def test_no_rows_and_no_batches():
    """ROB-09: no rows give no outputs; an epoch without a step is refused."""
    tf = pytest.importorskip("tensorflow")
    encoder = keras_bert.bert(keras_bert.BertConfig.of_size("tiny", vocabulary_size=30))
    model = keras_bert.tasks.text_classifier(encoder, 3)
    assert model.predict({"token_ids": np.zeros((0, 4), "int32")}, verbose=0)["label"].shape == (
        0,
        3,
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rows = ({"token_ids": np.ones((3, 4), "int32")}, np.zeros(3, "int32"))
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(8, drop_remainder=True)
    with pytest.raises(ValueError, match="holds no batches"):
        model.fit(dataset, verbose=0)
