"""Where a model trains: strategies by name, layouts on JAX, and a sentence where they aren't."""

from __future__ import annotations

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from conftest import TESTS

import keras_bert
from keras_bert.errors import InputError
from keras_bert.training import describe_batch, strategy

BACKEND = keras.backend.backend()


def test_unknown_name():
    with pytest.raises(ValueError, match="one of one, mirrored, multiworker, tpu"):
        strategy("two")


def test_one_device_is_everywhere():
    with strategy().scope():
        encoder = keras_bert.bert(keras_bert.BertConfig.of_size("tiny", vocabulary_size=30))
        model = keras_bert.tasks.text_classifier(encoder, 3)
        model.compile("sgd", "mse")
    assert model.replicas() == 1


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mirrored", "needs GPUs"),
        ("multiworker", "needs the environment variable TF_CONFIG"),
        ("tpu", "found no TPU 'local'"),
    ],
)
def test_hardware_that_is_not_there(monkeypatch, name, sentence):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if BACKEND != "tensorflow":
        sentence = "set KERAS_BACKEND=tensorflow"
    elif name == "mirrored":
        import tensorflow as tf

        if tf.config.list_logical_devices("GPU"):
            pytest.skip("there are GPUs here")
    with pytest.raises(InputError, match=sentence):
        strategy(name)


def test_a_batch_is_described_or_refused():
    class Four:
        num_replicas_in_sync = 4

    assert describe_batch(Four(), 32) == "global batch 32 = 4 replicas x 8"
    assert describe_batch(Four(), 32, 2).endswith("x 8, in 2 micro-batches of 4")
    with pytest.raises(InputError, match=r"a batch of 12 .* 4 replicas x 2 .* multiple of 8"):
        describe_batch(Four(), 12, 2)


def test_fit_refuses_a_batch_that_cannot_be_cut():
    encoder = keras_bert.bert(keras_bert.BertConfig.of_size("tiny", vocabulary_size=30))
    model = keras_bert.tasks.text_classifier(encoder, 1)
    model.compile("sgd", "mse", accumulate=4)
    with pytest.raises(ValueError, match=r"1 replicas x 4 micro-batches = 4. .* batches of 6"):
        model.fit({"token_ids": np.ones((12, 4), "int32")}, np.zeros(12), batch_size=6)
    for accumulate in (0, 2.0, None):
        with pytest.raises(ValueError, match="`accumulate` must be a positive integer"):
            model.compile("sgd", "mse", accumulate=accumulate)
    with pytest.raises(ValueError, match=r"must be left to `model\.compile\(accumulate="):
        model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")


@pytest.mark.skipif(BACKEND != "tensorflow", reason="scopes are TensorFlow's")
def test_what_was_made_outside_the_scope_is_named():
    code = """
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras, keras_bert, numpy as np
from keras_bert.training import strategy

def classifier():
    config = keras_bert.BertConfig.of_size("tiny", vocabulary_size=30)
    return keras_bert.tasks.text_classifier(keras_bert.bert(config), 3)

def refused(call, words):
    try:
        call()
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)

mirrored = strategy("mirrored")
outside = classifier()
with mirrored.scope():
    inside = classifier()
    refused(lambda: outside.compile("sgd", "mse"), "`model` must be built inside")
refused(lambda: inside.compile(keras.optimizers.SGD(), "mse"), "`optimizer` must be made inside")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
inside.compile("sgd", loss)  # by its name: made where the model was
x, y = {"token_ids": np.ones((4, 5), "int32")}, np.zeros(4)
refused(lambda: inside.fit(x, y, batch_size=3, verbose=0), "2 replicas x 1 micro-batches")
inside.fit(x, y, batch_size=4, verbose=0)
for predict in (lambda: inside.predict(x, verbose=0), lambda: inside.predict_on_batch(x)):
    assert predict()["label"].shape == (4, 3)
three = {"token_ids": x["token_ids"][:3]}
assert inside.predict(three, batch_size=2, verbose=0)["label"].shape == (3, 3)
outside.compile("sgd", loss)
with mirrored.scope():
    refused(lambda: outside.fit(x, y, verbose=0), "`model` must be built inside")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution is JAX's")
def test_layouts_make_the_updates_of_one_device(tmp_path):
    """Data and model parallel on 8 devices, which are one CPU."""
    here = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    outcomes = {}
    for name in ("one", "data", "model"):
        output = tmp_path / f"{name}.npz"
        command = [sys.executable, str(TESTS / "jax_layouts_run.py"), name, str(output)]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": here}, check=True)
        with np.load(output) as file:
            outcomes[name] = dict(file)
    one = outcomes.pop("one")
    for name, other in outcomes.items():
        for key in one:
            np.testing.assert_allclose(other[key], one[key], rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution is JAX's")
def test_model_devices_must_divide_the_devices():
    with pytest.raises(ValueError, match="must divide the number of devices"):
        keras_bert.training.model_parallel(3)


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has it")
def test_model_parallel_is_for_jax():
    with pytest.raises(InputError, match="KERAS_BACKEND=jax"):
        keras_bert.training.model_parallel(2)
