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
