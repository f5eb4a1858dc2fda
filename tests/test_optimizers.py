"""Optimizers and learning rates beside their closed forms, in float64."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from itertools import product

import keras
import numpy as np
import pytest
from conftest import TESTS

import keras_bert
from keras_bert.training import AdamW, Lamb, Model, WarmupConstant, WarmupLinear, WarmupPolynomial

SCHEDULES = [
    WarmupLinear(1e-3, 3, 20),
    WarmupLinear(1e-3, 3, 20, google_compat=True),
    WarmupPolynomial(1e-3, 3, 20, power=0.5),
    WarmupPolynomial(1e-3, 3, 20, power=2.0),
    WarmupConstant(1e-3, 3),
]
OPTIMIZERS = [
    (AdamW, {}),
    (AdamW, {"bias_correction": False}),
    (AdamW, {"layer_decay": 0.9}),
    (AdamW, {"weight_decay": 0.0, "beta_1": 0.0, "global_clipnorm": None}),
    (Lamb, {}),
    (Lamb, {"bias_correction": False, "layer_decay": 0.5}),
    (Lamb, {"weight_decay": 0.0}),
]
# A weight's path, and by the paper's rules: whether it's decayed, its depth from the top.
WEIGHTS = {
    "token_embedding/embeddings": (True, 3),
    "position_embedding/embeddings": (True, 3),
    "embedding_norm/gamma": (False, 3),
    "block_0/attention/query/kernel": (True, 2),
    "block_0/attention/query/bias": (False, 2),
    "block_0/output_norm/beta": (False, 2),
    "block_1/projection/kernel": (True, 1),
    "pooler/kernel": (True, 0),
    "masked_lm_head/norm/gamma": (False, 0),
    "label/kernel": (True, 0),
    "label/bias": (False, 0),
}


@pytest.fixture
def case(shared):
    """A case's input and what is expected of it."""
    lines = shared("cases/cases.jsonl").read_text(encoding="utf-8").split("\n")
    cases = {row["id"]: row for row in map(json.loads, filter(None, lines))}
    return lambda name: (cases[name]["input"], cases[name]["expected"])


def variable_at(path, value):
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        variable = keras.Variable(np.asarray(value, "float32"), name=name)
    assert variable.path == path
    return variable


def numbers(variables):
    return [keras.ops.convert_to_numpy(variable.value) for variable in variables]


def tensors(arrays):
    return [keras.ops.convert_to_tensor(np.asarray(array, "float32")) for array in arrays]


def tiny_encoder():
    return keras_bert.bert(
        keras_bert.BertConfig(
            vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
        )
    )


def batch(rows=8):
    rng = np.random.default_rng(0)
    token_ids = rng.integers(1, 30, (rows, 6)).astype("int32")
    return {"token_ids": token_ids}, rng.integers(0, 3, rows).astype("int32")


def small_model(optimizer, **arguments):
    """Four inputs, two blocks that are plain layers, one output."""
    x = inputs = keras.Input((4,))
    for name in ("block_0", "block_1"):
        x = keras.layers.Dense(4, activation="tanh", name=name)(x)
    model = Model(inputs, {"y": keras.layers.Dense(1, name="y")(x)})
    model.compile(optimizer, "mse", **arguments)
    return model


def small_data(rows=8):
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def closed_form(start, gradients, kind, rates, **settings):
    """The weights after as many updates as there are gradients; all lists go by weight."""
    settings = {
        "weight_decay": 0.01,
        "beta_1": 0.9,
        "beta_2": 0.999,
        "bias_correction": True,
        "layer_decay": 1.0,
        "global_clipnorm": 1.0,
    } | settings
    b1, b2, corrected = (settings[name] for name in ("beta_1", "beta_2", "bias_correction"))
    weights = [np.array(w, "float64") for w in start]
    m, v = ([np.zeros_like(w) for w in weights] for _ in range(2))
    for t, (rate, at_once) in enumerate(zip(rates, gradients, strict=True), 1):
        norm = math.sqrt(sum(np.square(g, dtype="float64").sum() for g in at_once))
        clip = settings["global_clipnorm"]
        scale = 1.0 if clip is None else min(1.0, clip / norm)
        for i, (decayed, depth) in enumerate(WEIGHTS.values()):
            g = scale * at_once[i].astype("float64")
            m[i] = b1 * m[i] + (1 - b1) * g
            v[i] = b2 * v[i] + (1 - b2) * g * g
            c1, c2 = (1 - b1**t, 1 - b2**t) if corrected else (1.0, 1.0)
            u = m[i] / c1 / (np.sqrt(v[i] / c2) + 1e-6)
            if decayed:
                u = u + settings["weight_decay"] * weights[i]
            ratio = 1.0
            if kind is Lamb and decayed and np.linalg.norm(weights[i]) * np.linalg.norm(u) > 0:
                ratio = np.linalg.norm(weights[i]) / np.linalg.norm(u)
            weights[i] = weights[i] - rate * settings["layer_decay"] ** depth * ratio * u
    return weights


@pytest.mark.parametrize(("kind", "settings"), OPTIMIZERS)
def test_closed_form(kind, settings):
    """Six updates with warm-up, clipping, gradients from 1e-7 to 1, weights that are zero."""
    rng = np.random.default_rng(0)
    shapes = [(5, 4) if decayed else (4,) for decayed, _ in WEIGHTS.values()]
    start = [rng.normal(size=shape).astype("float32") for shape in shapes]
    start[list(WEIGHTS).index("block_1/projection/kernel")][:] = 0
    start[list(WEIGHTS).index("label/bias")][:] = 0
    gradients = [
        [(10.0 ** -(i % 8) * rng.normal(size=s)).astype("float32") for i, s in enumerate(shapes)]
        for _ in range(6)
    ]
    schedule = WarmupLinear(1e-3, 2, 8)
    variables = [variable_at(path, value) for path, value in zip(WEIGHTS, start)]
    optimizer = kind(schedule, **settings)
    optimizer.build(variables)
    for at_once in gradients:
        optimizer.apply(tensors(at_once), variables)
    rates = [1e-3 * (t / 2 if t < 2 else (8 - t) / 6) for t in range(6)]
    expected = closed_form(start, gradients, kind, rates, **settings)
    for path, ours, theirs in zip(WEIGHTS, numbers(variables), expected):
        np.testing.assert_allclose(ours, theirs, rtol=3e-7, atol=1e-7, err_msg=path)


def test_the_first_update_with_and_without_correction():
    """Of a gradient far above epsilon: the rate, or the rate times 0.1 / sqrt(0.001)."""
    for correction, share in ((True, 1.0), (False, 0.1 / math.sqrt(1e-3))):
        weight = variable_at("label/bias", [0.0])
        optimizer = AdamW(0.1, bias_correction=correction)
        optimizer.apply(tensors([[0.5]]), [weight])
        assert math.isclose(-float(numbers([weight])[0][0]), 0.1 * share, rel_tol=1e-4)


def test_thousands_of_updates():
    """The correction of the second moment at every age, with gradients that shrink."""
    weight = variable_at("label/bias", [0.0])
    optimizer = AdamW(1e-3, global_clipnorm=None)
    optimizer.build([weight])
    w = m = v = 0.0
    for t in (*range(1, 11), *range(3001, 3011)):
        optimizer.iterations.assign(t - 1)
        g = math.sin(t) / t
        optimizer.apply(tensors([[g]]), [weight])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w -= 1e-3 * m / (1 - 0.9**t) / (math.sqrt(v / (1 - 0.999**t)) + 1e-6)
    np.testing.assert_allclose(numbers([weight])[0], [w], rtol=0, atol=1e-7)


def test_the_same_bits_every_time():
    results = []
    for _ in range(2):
        rng = np.random.default_rng(0)
        weight = variable_at("block_0/kernel", rng.normal(size=(500, 500)))
        optimizer = AdamW(1e-3)
        for _ in range(3):
            optimizer.apply(tensors([rng.normal(size=(500, 500))]), [weight])
        results.append(numbers([weight])[0])
    assert results[0].tobytes() == results[1].tobytes()


def test_only_kernels_and_tables_are_decayed(case):
    """OPT-02, in every task, on all backends' own variables."""
    case("OPT-02")
    for model in (
        keras_bert.tasks.pretraining(tiny_encoder()),
        keras_bert.tasks.text_classifier(tiny_encoder(), 3),
    ):
        optimizer = AdamW()
        optimizer.build(model.trainable_variables)
        decayed = {w.path for w in model.trainable_weights if optimizer._use_weight_decay(w)}
        tables = {f"{name}_embedding/embeddings" for name in ("token", "position", "segment")}
        kernels = {w.path for w in model.trainable_weights if w.path.endswith("/kernel")}
        assert decayed == tables | kernels


@pytest.mark.parametrize("kind", [AdamW, Lamb])
def test_keras_own_exclusion_counts_too(kind):
    excluded, decayed = (variable_at(f"{name}/kernel", [1.0]) for name in ("one", "two"))
    optimizer = kind(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[excluded])
    optimizer.build([excluded, decayed])
    optimizer.apply(tensors([[0.0], [0.0]]), [excluded, decayed])
    assert numbers([excluded])[0] == 1
    # LAMB steps by the weight's own norm, whatever the decay.
    assert math.isclose(numbers([decayed])[0][0], 0.95 if kind is AdamW else 0.9, rel_tol=1e-6)


def test_clip_is_by_the_norm_of_all_gradients(case):
    """OPT-04: after one update the first moment is a tenth of the clipped gradient."""
    given, expected = case("OPT-04")
    variables = [variable_at(f"{i}/bias", np.zeros(len(g))) for i, g in enumerate(given["grads"])]
    optimizer = AdamW(1.0, weight_decay=0.0, global_clipnorm=given["clip"])
    optimizer.build(variables)
    optimizer.apply(tensors(given["grads"]), variables)
    for moment, clipped in zip(numbers(optimizer._momentums), expected["clipped"]):
        np.testing.assert_allclose(10 * moment, clipped, rtol=1e-6)


def test_embedding_rows_are_summed_before_the_norm():
    """The same token twice in a batch: the gradient's norm is that of the sum."""
    model = keras_bert.tasks.text_classifier(tiny_encoder(), 3, dropout=0.0)
    inputs, labels = batch()
    inputs["token_ids"][:] = 7
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(AdamW(1e-9, weight_decay=0.0, global_clipnorm=1e-3), loss)
    model.train_on_batch(inputs, labels)
    moments = numbers(model.optimizer._momentums)
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


def test_the_layers_rates():
    """By our public paths: heads and pooler, blocks from the top, embeddings."""
    model = keras_bert.tasks.pretraining(
        keras_bert.bert(
            keras_bert.BertConfig(
                vocabulary_size=9, num_layers=12, num_heads=1, hidden_dim=2, intermediate_dim=2
            )
        )
    )
    optimizer = AdamW(layer_decay=0.5)
    optimizer.build(model.trainable_variables)
    factors = {
        w.path: f for w, f in zip(model.trainable_weights, optimizer._rate_factors, strict=True)
    }
    for path, factor in factors.items():
        first = path.split("/")[0]
        if first.startswith("block_"):
            assert factor == 0.5 ** (12 - int(first.removeprefix("block_"))), path
        elif "embedding" in first:
            assert factor == 0.5**13, path
        else:
            assert first in ("pooler", "masked_lm_head", "masked_lm", "next_sentence"), path
            assert factor == 1, path


def test_layer_decay_without_layers():
    for value in (0.0, 1.1):
        with pytest.raises(ValueError, match=f"at most 1. Received: layer_decay={value}"):
            AdamW(layer_decay=value)
    optimizer = AdamW(layer_decay=0.9)
    with pytest.raises(ValueError, match=r"none of which lies in a `block_0`.*'label/kernel'"):
        optimizer.build([variable_at("label/kernel", [1.0])])


def value_of(schedule, step):
    """The rate of `SCHEDULES`' numbers."""
    if step < 3:
        return 1e-3 * step / 3
    if isinstance(schedule, WarmupConstant):
        return 1e-3
    left = max(20 - step, 0)
    if isinstance(schedule, WarmupPolynomial):
        return 1e-3 * (left / 17) ** schedule.power
    return 1e-3 * (left / 20 if schedule.google_compat else left / 17)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule):
    for step in range(25):
        value = float(schedule(step))
        assert math.isclose(value, value_of(schedule, step), rel_tol=1e-6, abs_tol=1e-12), step


@pytest.mark.parametrize(
    ("mode", "google_compat"), [("continuous", False), ("google_compat", True)]
)
def test_the_end_of_the_warm_up(case, mode, google_compat):
    """OPT-01: no jump by default; Google's drops there."""
    given, expected = case("OPT-01")
    rate = WarmupLinear(given["init"], given["warmup"], given["total"], google_compat)
    values = [float(rate(step)) for step in given["steps"]]
    np.testing.assert_allclose(values, expected[mode], rtol=1e-6, atol=1e-20)


@pytest.mark.parametrize("kind", [WarmupLinear, WarmupPolynomial])
def test_schedules_at_their_edges(case, kind):
    """OPT-06."""
    given, _ = case("OPT-06")
    more = {"power": 2.0} if kind is WarmupPolynomial else {}
    for warmup, total in given["cases"]:
        if warmup > total:
            with pytest.raises(ValueError, match=f"warmup_updates={warmup}, total_updates={total}"):
                kind(0.5, warmup, total, **more)
            continue
        values = [float(kind(0.5, warmup, total, **more)(step)) for step in range(total + 2)]
        assert np.isfinite(values).all()
        assert values[0] == (0.5 if warmup == 0 else 0)
        assert values[total:] == [0, 0]


def test_wrong_schedules():
    with pytest.raises(ValueError, match=r"must not be negative. Received: warmup_updates=-1"):
        WarmupConstant(0.1, -1)
    with pytest.raises(ValueError, match=r"`power` must be positive. Received: power=0"):
        WarmupPolynomial(0.1, 0, 1, power=0)
    assert float(WarmupConstant(0.5, 0)(0)) == 0.5


@pytest.mark.parametrize("made", [*SCHEDULES, *OPTIMIZERS])
def test_configs_round_trip_twice(made):
    thing = made
    if isinstance(made, tuple):
        kind, settings = made
        thing = kind(SCHEDULES[1], use_ema=True, **settings)
    first = json.dumps(keras.saving.serialize_keras_object(thing), sort_keys=True)
    again = keras.saving.deserialize_keras_object(json.loads(first))
    second = json.dumps(keras.saving.serialize_keras_object(again), sort_keys=True)
    assert (type(again), second) == (type(thing), first)
    config = json.dumps(thing.get_config())
    assert json.dumps(type(thing).from_config(json.loads(config)).get_config()) == config


@pytest.mark.parametrize(
    ("kind", "schedule"), [*((AdamW, schedule) for schedule in SCHEDULES[1:]), (Lamb, SCHEDULES[0])]
)
def test_a_saved_model_goes_on(case, tmp_path, kind, schedule):
    """OPT-07: iterations, rate and settings come back, and the next update is the same."""
    updates = case("OPT-07")[0]["save_at"]
    model = small_model(kind(schedule, layer_decay=0.5, bias_correction=False))
    x, y = small_data()
    for _ in range(updates):
        model.train_on_batch(x, y)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert int(again.optimizer.iterations.numpy()) == updates
    assert float(again.optimizer.learning_rate) == float(model.optimizer.learning_rate)
    assert type(again.optimizer) is kind
    assert again.optimizer.get_config() == model.optimizer.get_config()
    for each in (model, again):
        each.train_on_batch(x, y)
    for ours, theirs in zip(numbers(again.weights), numbers(model.weights)):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("kind", "frequency"), [(AdamW, None), (AdamW, 2), (Lamb, 2)])
def test_moving_averages(kind, frequency):
    """Of the weights after each update; they take the weights' place as Keras documents."""
    model = small_model(
        kind(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=frequency)
    )
    beside = small_model(kind(0.1))
    beside.set_weights(model.get_weights())
    x, y = small_data()
    averages = None
    for update in range(1, 6):
        model.train_on_batch(x, y)
        beside.train_on_batch(x, y)
        weights = numbers(beside.trainable_variables)
        if averages is None:
            averages = weights
        averages = [0.8 * a + 0.2 * w for a, w in zip(averages, weights)]
        if frequency and update % frequency == 0:
            for variable, average in zip(beside.trainable_variables, averages):
                variable.assign(average)
    close = dict(rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(model.trainable_variables, beside.trainable_variables):
        np.testing.assert_allclose(*numbers([ours, theirs]), **close)
    model.optimizer.finalize_variable_values(model.trainable_variables)
    for ours, theirs in zip(numbers(model.trainable_variables), averages):
        np.testing.assert_allclose(ours, theirs, **close)


def test_averages_take_over_at_the_end_of_fit():
    model = small_model(AdamW(0.1, use_ema=True, ema_momentum=0.8))
    x, y = small_data()
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    model.fit(x, y, batch_size=4, epochs=3, verbose=0, callbacks=[swap])
    averages = numbers(model.optimizer._model_variables_moving_average)
    for ours, theirs in zip(numbers(model.trainable_variables), averages):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


TWO_REPLICAS = """
import keras, numpy as np, tensorflow as tf
import test_optimizers as tests
from keras_bert.training import tensorflow_adam

[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
data = tf.data.Dataset.from_tensor_slices(tests.small_data(24)).batch(8)
averaging = {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 2}
for kind, settings in (
    (tests.AdamW, {"layer_decay": 0.5, **averaging}),
    (tests.Lamb, {"bias_correction": False}),
):
    tensorflow_adam.COMPILED_FROM = 0
    results = []
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for strategy in (tf.distribute.get_strategy(), mirrored):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = tests.small_model(kind(1e-2, **settings))
        model.fit(data, epochs=1, shuffle=False, verbose=0)
        results.append(tests.numbers(model.optimizer.variables + model.trainable_variables))
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-7)
"""
only_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's alone"
)


@only_tensorflow
def test_two_replicas_are_one_device():
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    environment = os.environ | {"PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", TWO_REPLICAS], check=True, env=environment)


@only_tensorflow
def test_the_kernel_equals_small_operations(monkeypatch):
    """Under XLA too, compiled for a large variable, and for weights of another type without it."""
    results = []
    for jit_compile, form in product((False, True), ("kernel", "compiled", "operations")):
        with monkeypatch.context() as patch:
            if form == "operations":
                patch.setattr("keras_bert.training.optimizers.KERNEL", None)
            if form == "compiled":
                patch.setattr("keras_bert.training.tensorflow_adam.COMPILED_FROM", 0)
            keras.utils.set_random_seed(0)
            model = small_model(AdamW(1e-2, layer_decay=0.5), jit_compile=jit_compile)
            for _ in range(3):
                model.train_on_batch(*small_data())
            results.append(numbers(model.trainable_variables))
    for weights in results[1:]:
        for ours, theirs in zip(weights, results[0]):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    weight = keras.Variable([1.0], dtype="bfloat16", name="bias")
    AdamW(0.5).apply([keras.ops.ones((1,), "bfloat16")], [weight])
    assert float(numbers([weight])[0][0]) == 0.5
