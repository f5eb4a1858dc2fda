"""Layers alone: shapes, errors, and what may depend on what."""

from __future__ import annotations

import json
import math

import keras
import numpy as np
import pytest
from conftest import TESTS
from keras import ops

import keras_bert
from keras_bert.layers import (
    Dropout,
    EncoderBlock,
    MaskedLMHead,
    OutputBias,
    Pooler,
    PositionEmbedding,
    SelfAttention,
)
from keras_bert.layers.activations import in_training


def tiny(**numbers):
    return keras_bert.BertConfig(
        **{
            "vocabulary_size": 30,
            "num_layers": 2,
            "num_heads": 2,
            "hidden_dim": 16,
            "intermediate_dim": 32,
            "max_sequence_length": 24,
            "initializer_range": 0.3,
        }
        | numbers
    )


def one_row(token_ids, padding_mask=None):
    token_ids = np.array([token_ids], "int32")
    mask = np.ones_like(token_ids) if padding_mask is None else np.array([padding_mask], "int32")
    return {"token_ids": token_ids, "segment_ids": 0 * token_ids, "padding_mask": mask}


def encode(encoder, inputs):
    return encoder.predict(inputs, verbose=0)["sequence_output"]


def test_worked_example():
    """Attention over four tokens of width 4, by hand: `docs/worked_example.md`."""
    path = TESTS / "golden" / "worked_example.json"
    example = json.loads(path.read_text(encoding="utf-8"))
    expected = {name: np.array(rows) for name, rows in example.items() if name not in
                ("what", "note")}  # fmt: skip

    tokens = keras.layers.Embedding(4, 4)
    segments = keras.layers.Embedding(1, 4)
    positions = PositionEmbedding(4, 4)
    ids = np.arange(4, dtype="int32")[None]
    for layer in (tokens, segments, positions):
        layer.build(ids.shape)
    tokens.embeddings.assign(expected["token_embedding"])
    segments.embeddings.assign(expected["segment_embedding"][:1])
    positions.embeddings.assign(expected["position_embedding"])
    x = tokens(ids) + segments(0 * ids) + positions(ids)
    close(x, expected["input"])

    attention = SelfAttention(hidden_dim=4, num_heads=1)
    attention.build((None, None, 4))
    for layer in (attention.query, attention.key, attention.value, attention.projection):
        layer.kernel.assign(np.eye(4))
    close(attention.scores(x)[:, 0] * 2, expected["scores"])
    close(attention.scores(x)[:, 0], expected["scaled_by_sqrt_width"], atol=5.1e-5)  # 4 digits
    close(attention.probabilities(x)[:, 0], expected["attention"])
    close(attention(x), expected["attention_output"])

    norm = keras.layers.LayerNormalization(epsilon=1e-12)
    close(norm(x + attention(x)), expected["residual_layer_norm"])


def close(ours, theirs, atol=1e-6):
    np.testing.assert_allclose(ops.convert_to_numpy(ours)[0], theirs, rtol=0, atol=atol)


def test_padding_changes_nothing():
    encoder = keras_bert.bert(tiny())
    alone = encode(encoder, one_row([2, 5, 7, 3, 9]))
    for padding in (1, 4, 11):
        padded = encode(encoder, one_row([2, 5, 7, 3, 9] + [0] * padding, [1] * 5 + [0] * padding))
        np.testing.assert_allclose(padded[:, :5], alone, rtol=0, atol=1e-5)
    left = encode(encoder, one_row([0, 0, 2, 5, 7, 3, 9], [0, 0, 1, 1, 1, 1, 1]))
    np.testing.assert_allclose(left[:, 2:], alone, rtol=0, atol=1e-5)


def test_batch_changes_nothing():
    encoder = keras_bert.bert(tiny())
    token_ids = np.random.default_rng(0).integers(1, 30, (7, 6)).astype("int32")
    batch = one_row([0])
    batch = {"token_ids": token_ids, "segment_ids": token_ids % 2, "padding_mask": token_ids**0}
    together = encode(encoder, batch)
    for row in range(7):
        alone = encode(encoder, {name: part[row : row + 1] for name, part in batch.items()})
        np.testing.assert_allclose(alone[0], together[row], rtol=0, atol=1e-5)


def test_packed_row_equals_its_sequences_alone():
    encoder = keras_bert.bert(tiny())
    first, second = [2, 5, 7, 3], [2, 9, 11, 12, 13, 3]
    packed = encode(encoder, one_row(first + second + [0, 0], [1] * 4 + [2] * 6 + [0, 0]))
    np.testing.assert_allclose(packed[:, :4], encode(encoder, one_row(first)), rtol=0, atol=1e-5)
    np.testing.assert_allclose(packed[:, 4:10], encode(encoder, one_row(second)), rtol=0, atol=1e-5)


def test_all_padding_is_finite():
    encoder = keras_bert.bert(tiny())
    outputs = encoder.predict(one_row([0, 0, 0], [0, 0, 0]), verbose=0)
    assert all(np.isfinite(output).all() for output in outputs.values())


def test_all_padding_is_finite_in_float16_throughout():
    """-1e9 isn't a float16: the mask is in float32 whatever Keras's default is."""
    keras.config.set_floatx("float16")
    try:
        maps = SelfAttention(8, 2, dtype="float16").probabilities(
            ops.ones((1, 3, 8), "float16"), np.zeros((1, 3), "int32")
        )
    finally:
        keras.config.set_floatx("float32")
    assert np.isfinite(ops.convert_to_numpy(ops.cast(maps, "float32"))).all()


def test_a_batch_of_no_row():
    assert tuple(SelfAttention(8, 2)(ops.zeros((0, 5, 8))).shape) == (0, 5, 8)


def test_gradient_pattern():
    """Each output depends on every token of its own sequence, and on nothing else."""
    encoder = keras_bert.bert(tiny(dropout=0.0, attention_dropout=0.0))
    mask = np.array([1, 1, 1, 1, 2, 2, 2, 0, 0])
    from_embeddings = keras.Model(
        [encoder.get_layer("embedding_dropout").output, encoder.input["padding_mask"]],
        encoder.output["sequence_output"],
    )
    x = np.random.default_rng(0).normal(size=(1, 9, 16)).astype("float32")
    for i in np.flatnonzero(mask):
        gradient = gradient_of_output(from_embeddings, x, mask[None].astype("int32"), i)
        sizes = np.abs(gradient).sum(axis=-1)[0]
        own = mask == mask[i]
        assert (sizes[own] > 1e-6).all()
        assert (sizes[~own] == 0).all()


def gradient_of_output(model, x, mask, position):
    """d(a weighted sum of the model's output at `position`) / dx, on any backend."""
    # A plain sum would be constant: the layer norm makes every row sum to 0.
    weights = np.arange(16, dtype="float32") ** 2
    mask = ops.convert_to_tensor(mask)
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(model([x, mask])[:, position] * weights)
        return tape.gradient(y, x).numpy()
    if backend == "jax":
        import jax

        return np.asarray(jax.grad(lambda x: (model([x, mask])[:, position] * weights).sum())(x))
    import torch

    x = torch.tensor(x, requires_grad=True)
    (model([x, mask])[:, position] * torch.tensor(weights)).sum().backward()
    return x.grad.numpy()


def test_positions_restart_with_each_sequence():
    layer = PositionEmbedding(12, 4)
    mask = np.array([[1, 1, 1, 2, 2, 0], [0, 1, 1, 1, 0, 0]], "int32")
    positions = ops.convert_to_numpy(layer.positions(mask))
    np.testing.assert_array_equal(positions, [[0, 1, 2, 0, 1, 5], [0, 0, 1, 2, 4, 5]])


def test_sequence_beyond_the_position_table():
    encoder = keras_bert.bert(tiny(max_sequence_length=4))
    with pytest.raises(ValueError, match="max_sequence_length=4"):
        encoder(one_row([1, 2, 3, 4, 5]))


def test_width_that_heads_do_not_divide():
    with pytest.raises(ValueError, match="hidden_dim=8, num_heads=3"):
        SelfAttention(8, 3)


@pytest.mark.parametrize(
    "layer",
    [
        SelfAttention(8, 2, dropout=0.2, initializer_range=0.1),
        EncoderBlock(8, 2, 16, activation="gelu_tanh", dropout=0.2, norm_epsilon=1e-6),
        MaskedLMHead(8, activation="relu", norm_epsilon=1e-6),
        Dropout(0.2, seed=3),
        OutputBias(),
        Pooler(8, initializer_range=0.1),
        PositionEmbedding(12, 8, initializer_range=0.1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layer_round_trips_through_its_config(layer):
    config = layer.get_config()
    again = type(layer).from_config(json.loads(json.dumps(config)))
    assert again.get_config() == config


def test_layers_in_a_model_of_ones_own():
    """What `keras_bert.layers` offers, in a functional model that isn't ours."""
    token_ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(30, 16)(token_ids) + PositionEmbedding(24, 16)(token_ids)
    x = EncoderBlock(16, 2, 32)(x)
    model = keras.Model(token_ids, Pooler(16)(x))
    assert model.predict(np.ones((2, 5), "int32"), verbose=0).shape == (2, 16)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_is_finite(policy):
    keras.config.set_dtype_policy(policy)
    try:
        encoder = keras_bert.bert(tiny())
    finally:
        keras.config.set_dtype_policy("float32")
    inputs = one_row([2, 5, 7, 0, 0], [1, 1, 1, 0, 0])
    outputs = encoder.predict(inputs, verbose=0)
    assert np.isfinite(np.asarray(outputs["sequence_output"], "float32")).all()


def test_gelu_in_training_beside_its_formula():
    """Value and slope in float64 by the C library's erf; half precision only rounds them."""
    gelu = in_training(keras.activations.gelu)
    assert in_training(keras.activations.relu) is keras.activations.relu
    if keras.backend.backend() != "tensorflow":  # Keras's own, which the next test is about
        assert gelu is keras.activations.gelu
        return
    import tensorflow as tf

    assert gelu is not keras.activations.gelu
    exact = np.concatenate([np.linspace(-40, 40, 2001), [0.0, 1e-30, -1e-4]])
    for dtype, tolerance in (("float64", 1e-14), ("float32", 1e-6), ("bfloat16", 8e-3)):
        x = tf.constant(exact, dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = gelu(x)
        slope = tape.gradient(y, x)
        assert y.dtype == slope.dtype == x.dtype
        places = x.numpy().astype("float64")
        share = np.array([0.5 * math.erfc(-place / math.sqrt(2)) for place in places])
        density = np.exp(-0.5 * places**2) / math.sqrt(2 * math.pi)
        for ours, true in ((y, places * share), (slope, share + places * density)):
            ours = ours.numpy().astype("float64")
            np.testing.assert_allclose(ours, true, rtol=tolerance, atol=tolerance)


def test_gelu_is_the_erf_form():
    x = np.array([-3, -1, 0.5, 2], "float32")
    erf = [-0.004049694, -0.158655254, 0.345731231, 1.954499736]
    tanh = [-0.003637392, -0.158808009, 0.34571401, 1.954597694]
    for name, expected in (("gelu", erf), ("gelu_tanh", tanh), ("gelu_new", tanh)):
        ours = EncoderBlock(8, 2, 16, activation=name).activation(x)
        np.testing.assert_allclose(ops.convert_to_numpy(ours), expected, rtol=0, atol=1e-6)
