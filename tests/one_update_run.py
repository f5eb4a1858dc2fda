"""Trains the tiny golden model under one arrangement and writes what came out.

    python tests/one_update_run.py '{"replicas": 2, ...}' output.npz

A process of its own for every arrangement: devices are cut up once, and a failed collective
spoils its process.
"""

from __future__ import annotations

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf
from test_golden import CROSS_ENTROPY, assign, tiny_encoder

import keras_bert
from keras_bert.training.objective import Objective

BATCH, UPDATES = 8, 8
# The last batch has a single row: of two replicas, one is left without any.
ROWS = BATCH * (UPDATES - 1) + 1


def batches():
    """Pretraining batches whose rows have 0 to 3 masked positions."""
    rng = np.random.default_rng(0)
    token_ids = rng.integers(1, 100, (ROWS, 12)).astype("int32")
    lengths = rng.integers(5, 13, ROWS)
    inputs = {
        "token_ids": token_ids,
        "segment_ids": rng.integers(0, 2, (ROWS, 12)).astype("int32"),
        "padding_mask": (np.arange(12) < lengths[:, None]).astype("int32"),
        "mask_positions": rng.integers(0, 5, (ROWS, 3)).astype("int32"),
    }
    labels = {
        "masked_lm": rng.integers(0, 100, (ROWS, 3)).astype("int32"),
        "next_sentence": rng.integers(0, 2, ROWS).astype("int32"),
    }
    masked = rng.integers(0, 4, ROWS)
    masked[-1] = 2
    weights = {
        "masked_lm": (np.arange(3) < masked[:, None]).astype("float32"),
        "next_sentence": np.ones(ROWS, "float32"),
    }
    return tf.data.Dataset.from_tensor_slices((inputs, labels, weights)).batch(BATCH)


def recording(optimizer):
    """The optimizer, made to keep the gradients that reach its first update."""

    class Recording(optimizer):
        def build(self, variables):
            super().build(variables)
            self.first = [
                self.add_variable_from_reference(v, name="first_gradient") for v in variables
            ]

        def update_step(self, gradient, variable, learning_rate):
            first = self.first[self._get_variable_index(variable)]
            is_first = keras.ops.cast(self.iterations == 0, gradient.dtype)
            self.assign_add(first, is_first * gradient)
            super().update_step(gradient, variable, learning_rate)

    return Recording


def strategy_of(arguments):
    if arguments["workers"] > 1:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if arguments["replicas"] > 1:
        return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(arguments["replicas"])])
    return tf.distribute.get_strategy()


def optimizer_of(kind):
    rate = keras_bert.training.WarmupLinear(0.1 if kind == "sgd" else 1e-4, 3, UPDATES + 2)
    if kind == "sgd":
        return recording(keras.optimizers.SGD)(rate, global_clipnorm=1.0)
    return recording(keras_bert.training.AdamW)(rate)


def plant(fault):
    """Breaks the step on purpose, as Keras's own would: the comparison must notice."""
    model, objective = keras_bert.training.Model, Objective
    if fault == "clip in each replica":
        gradients = model._gradients
        model._gradients = lambda *a: tf.clip_by_global_norm(gradients(*a), 1.0)[0]
    if fault == "denominator of each replica":
        call = objective.__call__
        objective.__call__ = lambda self, y, y_pred, weights, totals, parts: (
            call(self, y, y_pred, weights, None, parts) / parts
        )
    if fault == "schedule counts micro-steps":
        schedule = keras_bert.training.WarmupLinear
        rate = schedule.__call__
        schedule.__call__ = lambda self, step: rate(self, 2 * step)


def train(arguments, strategy, kind, weights):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras_bert.tasks.pretraining(tiny_encoder(dropout=arguments["dropout"]))
        assign(model, weights)
        model.compile(
            optimizer_of(kind),
            CROSS_ENTROPY,
            accumulate=arguments["accumulate"],
            steps_per_execution=arguments["steps_per_execution"],
            weighted_metrics={"masked_lm": ["accuracy"], "next_sentence": ["accuracy"]},
            jit_compile=arguments["jit_compile"],
        )
    data = batches()
    start = [keras.ops.convert_to_numpy(weight.value) for weight in model.trainable_weights]
    history = model.fit(data, epochs=1, shuffle=False, verbose=0).history
    out = {f"{kind}/fit/{name}": np.array(value) for name, value in history.items()}
    if kind == "sgd":
        scores = model.evaluate(data, verbose=0, return_dict=True)
        out |= {f"{kind}/evaluate/{name}": np.array(score) for name, score in scores.items()}
        predicted = model.predict(data, verbose=0)
        out |= {f"{kind}/predict/{name}": value for name, value in predicted.items()}
        expected = predict_alone(model.get_weights())
        out |= {f"{kind}/alone/{name}": value for name, value in expected.items()}
    for weight, before, gradient in zip(
        model.trainable_weights, start, model.optimizer.first, strict=True
    ):
        out[f"{kind}/weight/{weight.path}"] = keras.ops.convert_to_numpy(weight.value)
        out[f"{kind}/start/{weight.path}"] = before
        out[f"{kind}/gradient/{weight.path}"] = keras.ops.convert_to_numpy(gradient.value)
    out[f"{kind}/iterations"] = keras.ops.convert_to_numpy(model.optimizer.iterations.value)
    return out


def predict_alone(weights):
    """What one device predicts with the same weights, however they were trained."""
    model = keras_bert.tasks.pretraining(tiny_encoder(dropout=0.0))
    model.set_weights(weights)
    return model.predict(batches(), verbose=0)


def main(arguments, output):
    arguments = {
        "replicas": 1,
        "workers": 1,
        "accumulate": 1,
        "steps_per_execution": 1,
        "dropout": 0.0,
        "jit_compile": False,
        "fault": None,
        "kinds": ["sgd", "adamw"],
    } | arguments
    tf.config.experimental.enable_op_determinism()
    if arguments["replicas"] > 1:
        [cpu] = tf.config.list_physical_devices("CPU")
        logical = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [logical] * arguments["replicas"])
    plant(arguments["fault"])
    golden = os.path.join(os.path.dirname(__file__), "golden", "weights_tiny_pretraining.npz")
    with np.load(golden) as file:
        weights = dict(file)
    out = {}
    strategy = strategy_of(arguments)
    for kind in arguments["kinds"]:
        out |= train(arguments, strategy, kind, weights)
    np.savez(output, **out)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
