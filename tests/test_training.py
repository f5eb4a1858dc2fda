"""One update, and plain `model.fit` in a user's script."""

from __future__ import annotations

import json
import math
import re

import keras
import numpy as np
import pytest
from conftest import TESTS

import keras_bert
from keras_bert.training import AdamW, Model, WarmupLinear
from keras_bert.training.model import WeightedMean, weighted_mean

TINY = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}


def tiny_encoder():
    return keras_bert.bert(keras_bert.BertConfig(vocabulary_size=30, **TINY))


def batch(rows=8):
    rng = np.random.default_rng(0)
    token_ids = rng.integers(1, 30, (rows, 6)).astype("int32")
    inputs = {
        "token_ids": token_ids,
        "segment_ids": np.zeros_like(token_ids),
        "padding_mask": np.ones_like(token_ids),
    }
    return inputs, rng.integers(0, 3, rows).astype("int32")


def test_readme_script():
    """The README's code, block after block, as a user would paste it."""
    readme = (TESTS.parent / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme.split("## Your own script", 1)[1], re.DOTALL)
    assert len(blocks) >= 3
    namespace: dict[str, object] = {}
    for block in blocks[:3]:
        exec(compile(block, "README.md", "exec"), namespace)


def test_weighted_mean_of_zero_logits_is_log_of_classes():
    loss = weighted_mean(keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    logits, labels = np.zeros((2, 3, 5), "float32"), np.zeros((2, 3), "int32")
    one = np.array([[1, 0, 0], [0, 0, 0]], "float32")
    assert math.isclose(float(loss(labels, logits, one)), math.log(5), rel_tol=1e-6)
    assert float(loss(labels, logits, 0 * one)) == 0.0


@pytest.mark.parametrize(
    "loss",
    ["mse", keras.losses.mean_squared_error, keras.losses.MeanSquaredError()],
    ids=["name", "function", "object"],
)
def test_weighted_mean_of_any_form(loss):
    wrapped = weighted_mean(loss)
    assert isinstance(wrapped, WeightedMean)
    value = wrapped(np.zeros((2, 1)), np.array([[1.0], [3.0]]), np.array([3.0, 1.0]))
    assert math.isclose(float(value), (3 * 1 + 1 * 9) / 4, rel_tol=1e-6)
    again = WeightedMean.from_config(wrapped.get_config())
    assert again.name == wrapped.name


def test_a_function_sees_labels_of_its_predictions_rank():
    wrapped = weighted_mean(lambda t, p: keras.ops.square(t - p))
    labels = np.array([1.0, 2, 3, 4], "float32")
    assert float(wrapped(labels, labels[:, None])) == 0.0


def test_a_weight_of_a_row_counts_for_each_of_its_elements():
    loss = weighted_mean(keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(2, 3, 5)), rng.integers(0, 5, (2, 3))
    plain = float(loss(labels, logits))
    for weights in (np.ones(2), np.ones((2, 1)), np.ones((2, 3)), np.ones((2, 3, 1))):
        assert math.isclose(float(loss(labels, logits, weights)), plain, rel_tol=1e-6)
    first = float(loss(labels[:1], logits[:1]))
    assert math.isclose(float(loss(labels, logits, np.array([1.0, 0]))), first, rel_tol=1e-6)


def test_a_sum_stays_a_sum():
    loss = keras.losses.MeanSquaredError(reduction="sum")
    assert weighted_mean(loss) is loss


def test_total_loss_is_the_sum_of_the_means():
    inputs, labels = batch()
    encoder = tiny_encoder()
    outputs = {
        name: keras.layers.Dense(3, name=name)(encoder.output["pooled_output"]) for name in "ab"
    }
    model = Model(encoder.input, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", {"a": loss, "b": loss})
    logs = model.test_on_batch(
        inputs,
        {"a": labels, "b": labels},
        {"a": np.arange(8.0), "b": np.ones(8)},
        return_dict=True,
    )
    assert math.isclose(logs["loss"], logs["a_loss"] + logs["b_loss"], rel_tol=1e-6)


def test_segments_and_mask_may_be_left_out():
    inputs, labels = batch()
    model = keras_bert.tasks.text_classifier(tiny_encoder(), 3)
    expected = model.predict(inputs, verbose=0)["label"]
    alone = {"token_ids": inputs["token_ids"]}
    nothing = alone | {"segment_ids": None, "padding_mask": None}
    for left_out in (alone, nothing):
        again = model.predict(left_out, verbose=0)["label"]
        np.testing.assert_allclose(again, expected, rtol=0, atol=1e-6)
        eager = keras.ops.convert_to_numpy(model(left_out)["label"])
        np.testing.assert_allclose(eager, expected, rtol=0, atol=1e-6)
        once = model.predict_on_batch(left_out)["label"]
        np.testing.assert_allclose(once, expected, rtol=0, atol=1e-6)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isfinite(model.fit(alone, labels, verbose=0).history["loss"][0])
    assert np.isfinite(model.train_on_batch(alone, labels)).all()
    assert np.isfinite(model.test_on_batch(alone, labels)).all()


def test_compiled_model_round_trips(tmp_path):
    inputs, labels = batch()
    model = keras_bert.tasks.text_classifier(tiny_encoder(), 3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(AdamW(WarmupLinear(1e-3, 2, 10)), loss, weighted_metrics=["accuracy"])
    model.fit(inputs, labels, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert int(again.optimizer.iterations.numpy()) == 1
    np.testing.assert_allclose(
        again.evaluate(inputs, labels, verbose=0), model.evaluate(inputs, labels, verbose=0)
    )


def test_schedule():
    rate = WarmupLinear(1e-4, 10_000, 1_000_000)
    expected = {
        0: 0,
        1: 1e-8,
        5000: 5e-5,
        9999: 9.999e-5,
        10_000: 1e-4,
        10_001: 9.999989899e-5,
        505_000: 5e-5,
        999_999: 1.0101010101e-10,
        1_000_000: 0,
        1_000_001: 0,
    }
    for step, value in expected.items():
        assert math.isclose(float(rate(step)), value, rel_tol=1e-6), step
    again = WarmupLinear.from_config(json.loads(json.dumps(rate.get_config())))
    assert again.get_config() == rate.get_config()


@pytest.mark.parametrize(("warmup", "total"), [(0, 10), (10, 10), (0, 1)])
def test_schedule_at_its_edges(warmup, total):
    rate = WarmupLinear(0.5, warmup, total)
    values = [float(rate(step)) for step in range(total + 2)]
    assert np.isfinite(values).all()
    assert values[0] == (0.5 if warmup == 0 else 0)
    assert values[total:] == [0, 0]


def test_schedule_that_warms_up_longer_than_it_lasts():
    with pytest.raises(ValueError, match="warmup_updates=20, total_updates=10"):
        WarmupLinear(0.1, 20, 10)


def test_adamw_closed_form():
    """Two updates of one decayed and one undecayed weight, in float64."""
    rate, decay, b1, b2, epsilon = 0.1, 0.5, 0.9, 0.999, 1e-6
    start, gradients = 2.0, (1e-5, -3e-5)
    kernel = keras.Variable([start], name="kernel")
    bias = keras.Variable([start], name="bias")
    optimizer = AdamW(rate, weight_decay=decay)
    optimizer.build([kernel, bias])
    expected = {"kernel": start, "bias": start}
    m = v = 0.0
    for t, g in enumerate(gradients, 1):
        gradient = keras.ops.convert_to_tensor([g], "float32")
        optimizer.apply([gradient, gradient], [kernel, bias])
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        step = rate * (m / (1 - b1**t)) / (math.sqrt(v / (1 - b2**t)) + epsilon)
        expected["kernel"] -= rate * decay * expected["kernel"] + step
        expected["bias"] -= step
    for variable in (kernel, bias):
        assert math.isclose(
            float(keras.ops.convert_to_numpy(variable.value)[0]),
            expected[variable.name],
            rel_tol=2e-6,
        )


def test_only_kernels_and_tables_are_decayed():
    model = keras_bert.tasks.pretraining(tiny_encoder())
    optimizer = AdamW()
    optimizer.build(model.trainable_variables)
    decayed = {
        weight.path for weight in model.trainable_weights if optimizer._use_weight_decay(weight)
    }
    assert decayed == {
        weight.path
        for weight in model.trainable_weights
        if weight.path.endswith(("/kernel", "/embeddings"))
    }


def test_clip_is_by_the_norm_of_all_gradients():
    first, second = keras.Variable([0.0, 0.0], name="a"), keras.Variable([0.0], name="b")
    optimizer = AdamW(1.0, weight_decay=0.0)
    gradients = [keras.ops.convert_to_tensor(g) for g in ([3.0, 4.0], [12.0])]
    optimizer.build([first, second])
    optimizer.apply(gradients, [first, second])
    # After one update the first moment is a tenth of the clipped gradient, whose norm was 13.
    moments = [keras.ops.convert_to_numpy(m.value) for m in optimizer._momentums]
    np.testing.assert_allclose(moments[0], np.array([3, 4]) / 130, rtol=1e-6)
    np.testing.assert_allclose(moments[1], np.array([12]) / 130, rtol=1e-6)


def test_embedding_rows_are_summed_before_the_norm():
    """The same token twice in a batch: the gradient's norm is that of the sum."""
    model = keras_bert.tasks.text_classifier(tiny_encoder(), 3, dropout=0.0)
    inputs, labels = batch()
    inputs["token_ids"][:] = 7
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(AdamW(1e-9, weight_decay=0.0, global_clipnorm=1e-3), loss)
    model.train_on_batch(inputs, labels)
    moments = [keras.ops.convert_to_numpy(m.value) for m in model.optimizer._momentums]
    norm = math.sqrt(sum(float(np.square(10 * moment).sum()) for moment in moments))
    assert math.isclose(norm, 1e-3, rel_tol=1e-4)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_learns(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = keras_bert.tasks.text_classifier(tiny_encoder(), 3, dropout=0.0)
    finally:
        keras.config.set_dtype_policy("float32")
    assert model.output["label"].dtype == "float32"
    inputs, labels = batch(16)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(AdamW(1e-2), loss)
    history = model.fit(inputs, labels, epochs=12, verbose=0).history["loss"]
    assert np.isfinite(history).all()
    assert history[-1] < history[0] - 0.1


def test_beta_of_zero():
    weight = keras.Variable([1.0], name="kernel")
    optimizer = AdamW(0.1, weight_decay=0.0, beta_1=0.0)
    optimizer.build([weight])
    optimizer.apply([keras.ops.convert_to_tensor([0.5])], [weight])
    assert math.isclose(float(keras.ops.convert_to_numpy(weight.value)[0]), 0.9, rel_tol=1e-5)
