"""Recomputed activations: the same updates with dropout on, less memory, nothing else changed."""

from __future__ import annotations

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from conftest import TESTS

import keras_bert
from keras_bert.layers import EncoderBlock
from keras_bert.training.memory import recompute

BACKEND = keras.backend.backend()
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
SIZES = {"num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
# `jit_compile` and micro-batches.
STEPS = {
    "tensorflow": [(False, 2), (True, 1)],
    "jax": [(True, 1), (True, 2)],
    "torch": [(False, 2)],
}


def classifier(on=False, num_layers=2):
    keras.utils.set_random_seed(3)
    config = keras_bert.BertConfig(
        vocabulary_size=50, num_layers=num_layers, dropout=0.3, attention_dropout=0.3, **SIZES
    )
    model = keras_bert.tasks.text_classifier(keras_bert.bert(config), 3)
    if on:
        recompute(model)
    return model


def batch(rows=8, length=6):
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, length + 1, rows)
    inputs = {
        "token_ids": rng.integers(1, 50, (rows, length)),
        "padding_mask": (np.arange(length) < lengths[:, None]).astype("int32"),
    }
    return inputs, rng.integers(0, 3, rows)


def values(variables):
    return [keras.ops.convert_to_numpy(variable.value) for variable in variables]


def train(model, updates=3, **arguments):
    """Losses of some updates, and the weights after them."""
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9), LOSS, **arguments)
    losses = [float(model.train_on_batch(*batch())) for _ in range(updates)]
    return losses, values(model.trainable_variables)


def check_same(one, other):
    np.testing.assert_allclose(other[0], one[0], rtol=1e-6)
    for ours, theirs in zip(one[1], other[1]):
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("jit_compile", "accumulate"), STEPS[BACKEND])
def test_the_same_updates_with_dropout(jit_compile, accumulate):
    arguments = {"jit_compile": jit_compile, "accumulate": accumulate}
    check_same(train(classifier(), **arguments), train(classifier(on=True), **arguments))


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="replicas are TensorFlow's")
def test_the_same_updates_on_two_replicas():
    code = """
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras, keras_bert, test_recompute

def fit(on, jit_compile):
    with keras_bert.training.strategy("mirrored").scope():
        model = test_recompute.classifier(on, num_layers=1)
        model.compile(keras.optimizers.SGD(0.5), test_recompute.LOSS, jit_compile=jit_compile)
    losses = model.fit(*test_recompute.batch(), batch_size=8, epochs=2, verbose=0).history["loss"]
    return losses, test_recompute.values(model.trainable_variables)

for jit_compile in (False, True):
    test_recompute.check_same(fit(False, jit_compile), fit(True, jit_compile))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.mark.skipif(BACKEND == "torch", reason="torch's dropout draws anew in Keras's own model")
def test_in_a_model_of_keras_alone():
    """No mask, and random states that live in variables: they must move on as ever."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 5, 16)).astype("float32"), rng.integers(0, 3, 4)
    results = []
    for on in (False, True):
        keras.utils.set_random_seed(3)
        block = EncoderBlock(16, 2, 32, dropout=0.3)
        model = keras.Sequential([block, keras.layers.Flatten(), keras.layers.Dense(3)])
        block.recompute = on
        model.compile("sgd", LOSS)
        losses = [float(model.train_on_batch(x, y)) for _ in range(3)]
        states = [each for each in block.variables if each.name == "seed_generator_state"]
        results.append((losses, values([*model.trainable_variables, *states])))
    check_same(*results)
    assert max(state[1] for state in results[0][1][-2:]) == 6  # two draws an update


def test_a_frozen_block_stays_as_it_is():
    results = []
    for on in (False, True):
        model = classifier(on, num_layers=1)
        frozen = model.get_layer("block_0")
        frozen.trainable = False
        before = values(frozen.weights)
        results.append(train(model, updates=2))
        for old, new in zip(before, values(frozen.weights)):
            np.testing.assert_array_equal(new, old)
    check_same(*results)


def test_mixed_precision_trains():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        one, other = train(classifier(), updates=2), train(classifier(on=True), updates=2)
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_allclose(other[0], one[0], rtol=1e-3)


def test_nothing_else_changes(tmp_path):
    """Paths, predictions and the file; a loaded model keeps its activations until asked."""
    plain, model = classifier(), classifier(on=True)
    assert [v.path for v in model.weights] == [v.path for v in plain.weights]
    train(model, updates=1)
    expected = model.predict(batch()[0], verbose=0)["label"]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(batch()[0], verbose=0)["label"], expected, atol=1e-6)
    blocks = [layer for layer in loaded.layers if isinstance(layer, EncoderBlock)]
    assert not any(block.recompute for block in blocks)
    recompute(loaded)
    assert all(block.recompute for block in blocks)
    assert np.isfinite(loaded.train_on_batch(*batch()))


def test_asked_after_the_step_was_compiled():
    model = classifier()
    train(model, updates=1)
    assert model.train_function is not None
    recompute(model)
    assert model.train_function is None
    recompute(model, on=False)
    assert not model.get_layer("block_0").recompute


def test_a_nested_encoder_is_found():
    config = keras_bert.BertConfig(vocabulary_size=50, num_layers=1, **SIZES)
    encoder = keras_bert.bert(config)
    recompute(keras_bert.tasks.multiple_choice(encoder))
    assert encoder.get_layer("block_0").recompute
    with pytest.raises(ValueError, match="must have layers that can recompute"):
        recompute(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))


def test_the_backward_pass_computes_again():
    plain, recomputed = [cost_of(classifier(on, num_layers=3)) for on in (False, True)]
    if BACKEND == "torch":
        assert recomputed < plain / 2
    else:
        # Each of the three blocks makes products once more: XLA didn't merge them with the first.
        assert recomputed >= plain + 3 * 3


def cost_of(model):
    """Bytes that torch keeps for the gradient; matrix products in the program of the others."""
    inputs, _ = batch(rows=8, length=64)
    inputs["segment_ids"] = np.zeros_like(inputs["token_ids"])
    if BACKEND == "torch":
        return bytes_kept_by_torch(model, inputs)
    text = (
        program_of_jax(model, inputs) if BACKEND == "jax" else program_of_tensorflow(model, inputs)
    )
    return text.count(" dot(")


def program_of_tensorflow(model, inputs):
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def gradients(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(inputs, training=True)["label"])
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    inputs = {name: tf.constant(x, tf.int32) for name, x in inputs.items()}
    return gradients.experimental_get_compiler_ir(inputs)(stage="optimized_hlo")


def program_of_jax(model, inputs):
    import jax

    def loss(weights, states):
        out, _ = model.stateless_call(weights, states, inputs, training=True)
        return out["label"].sum()

    weights, states = (
        [variable.value for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    return jax.jit(jax.grad(loss)).lower(weights, states).compile().as_text()


def bytes_kept_by_torch(model, inputs):
    import torch

    kept = {}

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(inputs, training=True)
    return sum(kept.values()) - 4 * model.count_params()
