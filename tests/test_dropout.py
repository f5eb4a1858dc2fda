"""A step's dropout depends on the seed, the update, the replica and the micro-batch alone."""

from __future__ import annotations

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from conftest import TESTS

import keras_bert
from keras_bert.layers import Dropout

TINY = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def classifier():
    """Built from one seed, as a run and the run that resumes it build theirs."""
    keras.utils.set_random_seed(7)
    encoder = keras_bert.bert(keras_bert.BertConfig(vocabulary_size=30, **TINY))
    return keras_bert.tasks.text_classifier(encoder, 3, dropout=0.5)


def batch():
    rng = np.random.default_rng(0)
    return {"token_ids": rng.integers(1, 30, (4, 6))}, rng.integers(0, 3, 4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(200, 101, 11), (1,), (3, 0, 2)])
@pytest.mark.parametrize("rate", [0.1, 0.5, 1e-6])
def test_dropout_drops_its_rate_and_scales_the_rest(shape, rate, dtype):
    layer = Dropout(rate, seed=3, dtype=dtype)
    y = keras.ops.convert_to_numpy(
        keras.ops.cast(layer(keras.ops.ones(shape, dtype), training=True), "float32")
    )
    assert y.shape == shape
    if y.size > 1000:
        if (keras.backend.backend(), dtype) != ("torch", "float16"):  # draws in float16 itself
            spread = 4 * np.sqrt(rate * (1 - rate) / y.size)
            levels = 2**-7 if dtype != "float32" and keras.backend.backend() != "tensorflow" else 0
            assert np.mean(y == 0) == pytest.approx(rate, abs=spread + levels)
        np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=5e-3)


def test_dropout_without_training_rate_or_memory():
    x = keras.ops.ones((4, 5))
    for layer, training in ((Dropout(0.5), False), (Dropout(0.0), True)):
        np.testing.assert_array_equal(layer(x, training=training), x)
    layer = Dropout(0.5, seed=1)
    one, other = (keras.ops.convert_to_numpy(layer(x, training=True)) for _ in range(2))
    assert (one != other).any()
    again = Dropout.from_config(layer.get_config())
    np.testing.assert_array_equal(again(x, training=True), one)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's own kernels")
def test_dropout_passes_gradients_where_it_passes_values():
    import tensorflow as tf

    layer, x = Dropout(0.3), tf.ones((40, 50))

    @tf.function
    def both():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        return y, tape.gradient(y, x)

    y, gradient = both()
    np.testing.assert_array_equal(y, gradient)
    assert 0.2 < np.mean(y == 0) < 0.4


def test_masks_depend_on_update_replica_and_micro_batch():
    inputs, _ = batch()
    model = classifier()

    def outputs(update, replica, micro_batch):
        with keras.StatelessScope():
            model._draw_by_update(update, replica, micro_batch)
            with model.drawing(model._random_states):
                return keras.ops.convert_to_numpy(model(inputs, training=True)["label"])

    first = outputs(0, 0, 0)
    np.testing.assert_array_equal(outputs(0, 0, 0), first)
    different = [outputs(*numbers) for numbers in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 2, 3))]
    for i, one in enumerate(different):
        for other in [first, *different[:i]]:
            assert np.abs(one - other).max() > 1e-3


def test_micro_batches_of_the_same_rows_differ():
    """Were they the same, two of them would make the update of one."""
    inputs, labels = batch()
    twice = {"token_ids": np.repeat(inputs["token_ids"], 2, axis=0)}
    weights = []
    for x, y, accumulate in ((inputs, labels, 1), (twice, np.repeat(labels, 2), 2)):
        model = classifier()
        model.compile(keras.optimizers.SGD(0.5), LOSS, accumulate=accumulate)
        model.train_on_batch(x, y)
        weights.append(keras.ops.convert_to_numpy(model.get_layer("label").kernel.value))
    assert np.abs(weights[0] - weights[1]).max() > 1e-3


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_run_draws_what_it_would_have_drawn(accumulate):
    inputs, labels = batch()

    def compiled():
        model = classifier()
        model.compile(keras_bert.training.AdamW(1e-2), LOSS, accumulate=accumulate)
        model.optimizer.build(model.trainable_variables)
        return model

    straight = compiled()
    for _ in range(2):
        straight.train_on_batch(inputs, labels)
    resumed = compiled()
    for ours, theirs in (
        (resumed.trainable_variables, straight.trainable_variables),
        (resumed.optimizer.variables, straight.optimizer.variables),
    ):
        for variable, stored in zip(ours, theirs):
            variable.assign(keras.ops.convert_to_numpy(stored.value))
    for model in (straight, resumed):
        for _ in range(2):
            model.train_on_batch(inputs, labels)
    for one, other in zip(straight.trainable_variables, resumed.trainable_variables):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(one.value), keras.ops.convert_to_numpy(other.value)
        )


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="replicas are TensorFlow's")
def test_two_replicas_draw_different_masks():
    code = """
import numpy as np, tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras_bert, test_dropout
strategy = keras_bert.training.strategy("mirrored")
with strategy.scope():
    model = test_dropout.classifier()
    model.compile("sgd", test_dropout.LOSS)
    model.optimizer.build(model.trainable_variables)
inputs, _ = test_dropout.batch()

def outputs():
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return model._forward(inputs, replica, 0)[0]["label"]

one, other = strategy.experimental_local_results(strategy.run(outputs))
assert np.abs(one - other).max() > 1e-3, (one, other)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
