"""One update, and plain `model.fit` in a user's script."""

from __future__ import annotations

import math
import re

import keras
import numpy as np
import pytest
from conftest import TESTS

import keras_bert
from keras_bert.training import AdamW, Model, WarmupLinear
from keras_bert.training.objective import Objective

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


def objective(loss, names=("label",)):
    return Objective(list(names), loss)


def test_loss_of_zero_logits_is_log_of_classes():
    mean = objective(keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    logits, labels = np.zeros((2, 3, 5), "float32"), np.zeros((2, 3), "int32")
    one = np.array([[1, 0, 0], [0, 0, 0]], "float32")
    assert math.isclose(float(mean(labels, logits, one)), math.log(5), rel_tol=1e-6)
    assert float(mean(labels, logits, 0 * one)) == 0.0


@pytest.mark.parametrize(
    "loss",
    ["mse", keras.losses.mean_squared_error, keras.losses.MeanSquaredError()],
    ids=["name", "function", "object"],
)
def test_weighted_mean_of_any_form(loss):
    value = objective(loss)(np.zeros((2, 1)), np.array([[1.0], [3.0]]), np.array([3.0, 1.0]))
    assert math.isclose(float(value), (3 * 1 + 1 * 9) / 4, rel_tol=1e-6)


def test_a_function_sees_labels_of_its_predictions_rank():
    mean = objective(lambda t, p: keras.ops.square(t - p))
    labels = np.array([1.0, 2, 3, 4], "float32")
    assert float(mean(labels, labels[:, None], None)) == 0.0


def test_a_function_that_takes_the_mean_itself():
    mean = objective(lambda t, p: keras.ops.mean(keras.ops.square(t - p)))
    assert float(mean(np.zeros((2, 1)), np.array([[1.0], [3.0]]), None)) == 5.0


def test_a_weight_of_a_row_counts_for_each_of_its_elements():
    mean = objective(keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(2, 3, 5)), rng.integers(0, 5, (2, 3))
    plain = float(mean(labels, logits, None))
    for weights in (np.ones(2), np.ones((2, 1)), np.ones((2, 3)), np.ones((2, 3, 1))):
        assert math.isclose(float(mean(labels, logits, weights)), plain, rel_tol=1e-6)
    first = float(mean(labels[:1], logits[:1], None))
    assert math.isclose(float(mean(labels, logits, np.array([1.0, 0]))), first, rel_tol=1e-6)


def test_the_parts_losses_add_up_to_the_batchs():
    """Whatever the parts' sizes and weights; an empty part adds nothing."""
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(9, 3, 5)), rng.integers(0, 5, (9, 3))
    weights = rng.integers(0, 2, (9, 3)).astype("float32")
    for given in (weights, weights[:, 0], None):
        mean = objective(keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        whole = float(mean(labels, logits, given))
        totals = mean.totals(labels, given)
        mean.means["label"].reset_state()
        cut = [slice(0, 4), slice(4, 9), slice(9, 9)]
        parts = [
            float(mean(labels[s], logits[s], None if given is None else given[s], totals, 3))
            for s in cut
        ]
        assert math.isclose(sum(parts), whole, rel_tol=1e-6)
        assert math.isclose(float(mean.result()), whole, rel_tol=1e-6)


def test_a_sum_stays_a_sum():
    total = objective(keras.losses.MeanSquaredError(reduction="sum"))
    labels, outputs = np.zeros((2, 1)), np.array([[1.0], [3.0]])
    assert float(total(labels, outputs, None)) == 10.0
    halves = [float(total(labels[i : i + 1], outputs[i : i + 1], None, {}, 2)) for i in (0, 1)]
    assert halves == [1.0, 9.0]


def test_an_unknown_output_is_named():
    with pytest.raises(ValueError, match=r"`loss` must have keys out of \['label'\].*'lable'"):
        objective({"lable": "mse"})
    with pytest.raises(ValueError, match="labels for the output 'label'"):
        objective("mse")({"other": np.zeros(2)}, {"label": np.zeros((2, 1))}, None)


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


def pooled_heads(count):
    """Several outputs of one layer, in a list."""
    encoder = tiny_encoder()
    x = keras.layers.Dense(count, name="wide")(encoder.output["pooled_output"])
    return Model(encoder.input, keras.ops.split(x, count, axis=-1))


def test_outputs_of_one_layer_each_have_their_loss():
    inputs, labels = batch()
    model = pooled_heads(2)
    model.compile("sgd", "mse")
    logs = model.test_on_batch(inputs, [labels * 0.0, labels * 1.0], return_dict=True)
    [one, other] = [value for name, value in logs.items() if name != "loss"]
    assert math.isclose(logs["loss"], one + other, rel_tol=1e-6)
    assert one != other


def test_ignored_labels_weigh_nothing():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(2, 3, 5)), rng.integers(0, 5, (2, 3))
    labels[0, 1:] = -1
    plain = objective(keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    weights = (labels >= 0).astype("float32")
    expected = float(plain(np.maximum(labels, 0), logits, weights))
    assert math.isclose(float(objective(loss)(labels, logits, None)), expected, rel_tol=1e-6)
    rows = np.array([1.0, 3.0])
    expected = float(plain(np.maximum(labels, 0), logits, weights * rows[:, None]))
    assert math.isclose(float(objective(loss)(labels, logits, rows)), expected, rel_tol=1e-6)


def test_eager_micro_batches():
    inputs, labels = batch()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = keras_bert.tasks.text_classifier(tiny_encoder(), 3)
    model.compile("sgd", loss, accumulate=2, run_eagerly=True)
    assert np.isfinite(model.fit(inputs, labels, 8, verbose=0).history["loss"]).all()


def test_a_step_of_ones_own_is_refused():
    class Own(Model):
        def train_step(self, *arguments):
            return {}

    encoder = tiny_encoder()
    own = Own(encoder.input, encoder.output)
    with pytest.raises(ValueError, match=r"`train_step` of .* derive .* from keras\.Model"):
        own.compile("sgd", "mse")


def test_fit_before_compile_says_so():
    inputs, labels = batch()
    model = keras_bert.tasks.text_classifier(tiny_encoder(), 3)
    with pytest.raises(ValueError, match="must call `compile"):
        model.fit(inputs, labels, verbose=0)


def test_weights_without_a_gradient_are_decayed_everywhere():
    encoder = tiny_encoder()
    model = keras_bert.tasks.pretraining(encoder)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(AdamW(0.1, weight_decay=0.5), {"masked_lm": loss})
    inputs, labels = batch()
    kernel = encoder.get_layer("pooler").weights[0]
    before = keras.ops.convert_to_numpy(kernel.value)
    inputs["mask_positions"] = np.ones((8, 1), "int32")
    model.train_on_batch(inputs, {"masked_lm": labels[:, None]})
    np.testing.assert_allclose(keras.ops.convert_to_numpy(kernel.value), 0.95 * before, rtol=1e-5)
