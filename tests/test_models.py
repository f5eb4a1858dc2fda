"""Configs, parameter counts, and the round trip of a whole model."""

from __future__ import annotations

import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_bert
from keras_bert.models import ARCHITECTURES, SIZES, attention_maps

TINY = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}


def count(config):
    """Parameters by arithmetic, as the paper's table counts them."""
    d, f = config.hidden_dim, config.intermediate_dim
    tables = config.vocabulary_size + config.max_sequence_length + config.num_segments
    block = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 2 * 2 * d
    return tables * d + 2 * d + config.num_layers * block + d * d + d


@pytest.mark.parametrize(
    ("config", "encoder", "with_heads"),
    [
        (keras_bert.BertConfig(), 109482240, 110106428),
        (keras_bert.BertConfig(vocabulary_size=21128), 102267648, 102882442),
        (keras_bert.BertConfig.large(), 335141888, 336226108),
    ],
    ids=["base", "base-chinese", "large"],
)
def test_parameter_counts(config, encoder, with_heads):
    assert count(config) == encoder
    if config.hidden_dim == 1024 and keras.backend.backend() != "tensorflow":
        pytest.skip("1.3 GB of weights are allocated on one backend only")
    built = keras_bert.bert(config)
    assert built.count_params() == encoder
    assert keras_bert.tasks.pretraining(built).count_params() == with_heads


def test_weight_paths_are_public():
    encoder = keras_bert.bert(keras_bert.BertConfig(vocabulary_size=30, **TINY))
    block = [
        f"block_0/{layer}/{weight}"
        for layer, weights in (
            ("attention/query", ("kernel", "bias")),
            ("attention/key", ("kernel", "bias")),
            ("attention/value", ("kernel", "bias")),
            ("attention/projection", ("kernel", "bias")),
            ("attention_norm", ("gamma", "beta")),
            ("intermediate", ("kernel", "bias")),
            ("projection", ("kernel", "bias")),
            ("output_norm", ("gamma", "beta")),
        )
        for weight in weights
    ]
    assert sorted(weight.path for weight in encoder.weights) == sorted(
        [
            "token_embedding/embeddings",
            "position_embedding/embeddings",
            "segment_embedding/embeddings",
            "embedding_norm/gamma",
            "embedding_norm/beta",
            *block,
            "pooler/kernel",
            "pooler/bias",
        ]
    )


def test_sizes():
    for name, (num_layers, width) in SIZES.items():
        config = keras_bert.BertConfig.of_size(name, vocabulary_size=100)
        assert (config.num_layers, config.hidden_dim) == (num_layers, width)
        assert (config.num_heads, config.intermediate_dim) == (width // 64, 4 * width)
    assert keras_bert.BertConfig.of_size("base") == keras_bert.BertConfig()
    with pytest.raises(ValueError, match="size='huge'"):
        keras_bert.BertConfig.of_size("huge")


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"hidden_dim": 8, "num_heads": 3}, "hidden_dim=8, num_heads=3"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"vocabulary_size": 3.5}, "vocabulary_size=3.5"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_impossible_numbers(numbers, message):
    with pytest.raises(ValueError, match=message):
        keras_bert.BertConfig(**numbers)


def test_unknown_number_is_named():
    with pytest.raises(ValueError, match="hidden_size"):
        keras_bert.BertConfig.from_dict({"hidden_size": 768})


def test_architectures_build():
    for config_class, build in ARCHITECTURES.values():
        config = config_class(vocabulary_size=30, **TINY)
        assert set(build(config).output) == {"sequence_output", "pooled_output"}


def test_attention_maps_sum_to_one():
    encoder = keras_bert.bert(keras_bert.BertConfig(vocabulary_size=30, **TINY))
    inputs = {
        "token_ids": np.array([[2, 5, 3, 0]]),
        "segment_ids": np.zeros((1, 4), "int32"),
        "padding_mask": np.array([[1, 1, 1, 0]]),
    }
    [probabilities] = attention_maps(encoder, inputs)
    probabilities = keras.ops.convert_to_numpy(probabilities)
    assert probabilities.shape == (1, 2, 4, 4)
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1, rtol=0, atol=1e-6)
    assert (probabilities[..., 3] == 0).all()


IN_A_FRESH_PROCESS = """
import sys
import numpy as np
import keras
import keras_bert
model = keras.saving.load_model(sys.argv[1])
assert type(model) is keras_bert.training.Model, type(model)
inputs = dict(np.load(sys.argv[2]))
np.savez(sys.argv[3], **model.predict(inputs, verbose=0))
"""


def test_keras_file_in_a_fresh_process(tmp_path):
    config = keras_bert.BertConfig(vocabulary_size=30, initializer_range=0.3, **TINY)
    model = keras_bert.tasks.pretraining(keras_bert.bert(config))
    token_ids = np.random.default_rng(0).integers(1, 30, (2, 6)).astype("int32")
    inputs = {
        "token_ids": token_ids,
        "segment_ids": token_ids % 2,
        "padding_mask": np.ones_like(token_ids),
        "mask_positions": np.array([[1, 3], [2, 4]], "int32"),
    }
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "inputs.npz", **inputs)
    paths = [str(tmp_path / name) for name in ("model.keras", "inputs.npz", "outputs.npz")]
    subprocess.run([sys.executable, "-c", IN_A_FRESH_PROCESS, *paths], check=True)
    ours = model.predict(inputs, verbose=0)
    with np.load(tmp_path / "outputs.npz") as again:
        for name, output in ours.items():
            np.testing.assert_allclose(again[name], output, rtol=0, atol=1e-6)


def test_tie_survives_the_keras_file(tmp_path):
    config = keras_bert.BertConfig(vocabulary_size=30, **TINY)
    model = keras_bert.tasks.masked_lm(keras_bert.bert(config))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.count_params() == model.count_params()
    table = again.get_layer("token_embedding").embeddings
    table.assign(table.value * 2)
    inputs = {"token_ids": np.array([[2, 5, 3]]), "mask_positions": np.array([[1]])}
    before = model.predict(inputs, verbose=0)["masked_lm"]
    assert np.abs(again.predict(inputs, verbose=0)["masked_lm"] - before).max() > 1e-4
