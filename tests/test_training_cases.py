"""Faults of training that users of other packages reported; a docstring names its case."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from conftest import TESTS

import keras_bert

# Importing torch's compiler warns of a part of torch.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")

BACKEND = keras.backend.backend()
TINY = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def classifier(dropout=0.0, l2=None):
    """The same weights each time."""
    keras.utils.set_random_seed(3)
    config = keras_bert.BertConfig(
        vocabulary_size=30, dropout=dropout, attention_dropout=dropout, **TINY
    )
    encoder = keras_bert.bert(config)
    regularizer = None if l2 is None else keras.regularizers.L2(l2)
    head = keras.layers.Dense(3, kernel_regularizer=regularizer, name="label")
    logits = head(encoder.output["pooled_output"])
    return keras_bert.training.Model(encoder.input, {"label": logits})


def rows(count, length=6):
    rng = np.random.default_rng(0)
    return {"token_ids": rng.integers(1, 30, (count, length))}, rng.integers(0, 3, count)


def weights_of(model):
    return [keras.ops.convert_to_numpy(weight.value) for weight in model.trainable_weights]


def apart(ones, others):
    return max(np.abs(one - other).max() for one, other in zip(ones, others))


def trained(num_rows, batch_size, optimizer, *, epochs=1, accumulate=1, l2=None):
    model = classifier(l2=l2)
    model.compile(optimizer(), LOSS, accumulate=accumulate)
    x, y = rows(num_rows)
    history = model.fit(x, y, batch_size, epochs=epochs, shuffle=False, verbose=0).history
    return weights_of(model), history["loss"]


@pytest.mark.skipif(BACKEND != "tensorflow", reason="replicas are TensorFlow's")
def test_two_replicas_make_the_updates_of_one():
    """TRN-01, with and without a regularizer; TRN-02, whose last batch leaves one replica empty."""
    code = """
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras, numpy as np
import keras_bert
from test_training_cases import apart, trained
sgd = lambda: keras.optimizers.SGD(0.1)
for num_rows, l2 in ((8, None), (8, 0.1), (9, None)):
    one, losses = trained(num_rows, 4, sgd, epochs=2, l2=l2)
    with keras_bert.training.strategy("mirrored").scope():
        two, other_losses = trained(num_rows, 4, sgd, epochs=2, l2=l2)
    assert apart(one, two) < 1e-6, (num_rows, l2, apart(one, two))
    np.testing.assert_allclose(losses, other_losses, rtol=0, atol=1e-6)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_accumulation_under_a_schedule(kind):
    """TRN-05: the schedule counts updates, Keras's own included."""

    def optimizer():
        rate = keras.optimizers.schedules.PolynomialDecay(0.05, 4)
        return keras.optimizers.SGD(rate) if kind == "sgd" else keras_bert.training.AdamW(rate)

    once, losses = trained(32, 8, optimizer)
    twice, other_losses = trained(32, 8, optimizer, accumulate=2)
    assert apart(once, twice) < (1e-6 if kind == "sgd" else 1e-5)
    np.testing.assert_allclose(losses, other_losses, rtol=1e-6)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_micro_batches_of_an_uneven_last_batch(jit_compile):
    """Nine rows in batches of four: the last is one row, and the regularizer counts once."""
    if jit_compile and BACKEND != "tensorflow":
        pytest.skip("JAX compiles by itself, and torch's loop over micro-batches is Python's")
    x, y = rows(9)
    outcomes = []
    for accumulate in (1, 2):
        model = classifier(l2=0.1)
        model.compile(
            keras.optimizers.SGD(0.1),
            LOSS,
            accumulate=accumulate,
            jit_compile=jit_compile or "auto",
        )
        losses = model.fit(x, y, 4, shuffle=False, verbose=0).history["loss"]
        outcomes.append((weights_of(model), losses))
    (once, losses), (twice, other_losses) = outcomes
    assert apart(once, twice) < 1e-6
    np.testing.assert_allclose(losses, other_losses, rtol=1e-6)


def test_interrupted_after_four_of_ten_epochs(tmp_path):
    """TRN-09 with Keras's own callback; TRN-06: the losses are those of the unbroken run."""
    x, y = rows(8)

    def run(stop_after=None):
        model = classifier()
        model.compile(keras_bert.training.AdamW(1e-3), LOSS)
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")

        def stop(epoch, logs):
            if epoch + 1 == stop_after:
                raise KeyboardInterrupt

        callbacks = [backup, keras.callbacks.LambdaCallback(on_epoch_begin=stop)]
        history = keras.callbacks.History()
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(x, y, 4, epochs=10, shuffle=False, verbose=0, callbacks=[*callbacks, history])
        return history.history["loss"]

    unbroken = run()
    first = run(stop_after=5)
    second = run()
    assert (len(first), len(second)) == (4, 6)
    np.testing.assert_allclose(first + second, unbroken, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.skipif(
    BACKEND == "torch" and not shutil.which("g++"),
    reason="torch.compile needs a compiler of C++, and there's no g++",
)
def test_compiled_by_xla():
    """TRN-11: any batch and length, in fit and in predict."""
    plain, compiled = classifier(), classifier()
    plain.compile(keras.optimizers.SGD(0.1), LOSS, jit_compile=False)
    compiled.compile(keras.optimizers.SGD(0.1), LOSS, jit_compile=True)
    for length in (8, 16):
        x, y = rows(7, length)  # batches of 4 and 3
        for model in (plain, compiled):
            model.fit(x, y, 4, shuffle=False, verbose=0)
        outputs = [model.predict(x, 4, verbose=0)["label"] for model in (plain, compiled)]
        np.testing.assert_allclose(*outputs, rtol=0, atol=1e-5)
    assert apart(weights_of(plain), weights_of(compiled)) < 1e-5


@pytest.mark.skipif(BACKEND != "tensorflow", reason="other backends' programs have no strings")
def test_no_strings_in_the_training_graph():
    """TRN-12: what a TPU runs holds no strings and no tables."""
    import tensorflow as tf

    model = classifier(dropout=0.1)
    model.compile(keras_bert.training.AdamW(1e-3), LOSS, accumulate=2)
    model.optimizer.build(model.trainable_variables)
    batch = tf.nest.map_structure(tf.convert_to_tensor, rows(4))
    graph = tf.function(model.train_step).get_concrete_function(batch).graph
    operations = [*graph.get_operations()]
    for function in graph.as_graph_def().library.function:
        operations += [*function.node_def]
    for operation in operations:
        kind = getattr(operation, "type", None) or operation.op
        assert "HashTable" not in kind and "Lookup" not in kind.replace("ResourceGather", "")
        for tensor in getattr(operation, "outputs", ()):
            assert tensor.dtype != tf.string, operation


def test_the_same_seed_gives_the_same_losses():
    """TRN-13, with dropout and shuffling."""

    def losses():
        model = classifier(dropout=0.1)
        model.compile(keras_bert.training.AdamW(1e-3), LOSS)
        x, y = rows(16)
        keras.utils.set_random_seed(1)
        return model.fit(x, y, 4, epochs=3, verbose=0).history["loss"]

    assert losses() == losses()


@pytest.mark.parametrize(
    "policy", [pytest.param("mixed_bfloat16", marks=pytest.mark.slow), "mixed_float16"]
)
def test_half_precision_learns_what_float32_learns(policy):
    """NUM-06: a row that's masked as a whole, and a first scale that overflows, do no harm."""
    x, y = rows(24)
    mask = np.ones_like(x["token_ids"])
    mask[0] = 0
    x = x | {"padding_mask": mask}
    accuracies = {}
    for name in ("float32", policy):
        keras.config.set_dtype_policy(name)
        try:
            model = classifier()
            optimizer = keras_bert.training.AdamW(2e-2)
            if name == "mixed_float16":
                optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**40)
            model.compile(optimizer, LOSS, weighted_metrics=["accuracy"], accumulate=2)
        finally:
            keras.config.set_dtype_policy("float32")
        epochs = 40 if name == "mixed_float16" else 20
        model.fit(x, y, 8, epochs=epochs, shuffle=False, verbose=0)
        assert all(np.isfinite(weight).all() for weight in weights_of(model))
        accuracies[name] = model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"]
    assert accuracies["float32"] >= 0.9
    assert abs(accuracies[policy] - accuracies["float32"]) <= 0.1
