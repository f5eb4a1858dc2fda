"""The estimate of a step's memory, against programs that were compiled for TPUs."""

from __future__ import annotations

import keras
import pytest

import keras_bert
from keras_bert.training.memory import memory_estimate, recompute

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def base():
    """BERT-Base as it's pretrained on TPUs."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return keras_bert.tasks.pretraining(keras_bert.bert(keras_bert.BertConfig()))
    finally:
        keras.config.set_dtype_policy("float32")


def tiny():
    config = keras_bert.BertConfig(
        vocabulary_size=50, num_layers=3, num_heads=2, hidden_dim=16, intermediate_dim=32
    )
    return keras_bert.tasks.text_classifier(keras_bert.bert(config), 3)


# Rows, length, micro-batches and bytes of compiled steps: `benchmarks/tpu_step.py`, v5e.
COMPILED = {
    "jax": [(32, 128, 1, 2877542400), (32, 512, 1, 10935221248), (32, 512, 4, 4361305088)],
    "tensorflow": [(32, 128, 1, 3048469504), (32, 512, 1, 12584231936)],
}


@pytest.mark.parametrize("backend", COMPILED)
def test_near_what_compiled_steps_take(base, backend):
    recompute(base, on=False)
    for rows, length, accumulate, taken in COMPILED[backend]:
        estimate = memory_estimate(base, rows, length, accumulate=accumulate)
        assert estimate.total == pytest.approx(taken, rel=0.15)


@pytest.mark.parametrize("taken", [3062332416, 3800196096], ids=["jax", "tensorflow"])
def test_near_what_a_recomputing_step_takes(base, taken):
    recompute(base)
    assert memory_estimate(base, 32, 512).total == pytest.approx(taken, rel=0.15)


def test_a_sentence(base):
    recompute(base, on=False)
    estimate = memory_estimate(base, 64, 512, replicas=2)
    assert str(estimate).startswith("needs about 10.5 GiB a replica, batch 32 x 512: weights")


def test_parts():
    model = tiny()
    estimate = memory_estimate(model, 8, 6)
    states = [v for v in model.variables if v.name == "seed_generator_state"]
    assert estimate.weights == 4 * (model.count_params() + 2 * len(states))
    assert estimate.slots == 8 * model.count_params()
    # By hand, a row of a block: 6 tokens x (8 x 16 + 2 x 32 + 2 x 2 x 6) numbers of 4 bytes.
    block = 6 * (8 * 16 + 2 * 32 + 2 * 2 * 6) * 4
    whole = memory_estimate(model, 4096, 6)
    assert whole.activations == 4096 * (3 * block + 4 * 3)
    assert whole.gradients == 0  # at its fullest moment there are none yet
    assert memory_estimate(model, 1, 6).gradients == 4 * model.count_params()


def test_what_makes_it_less():
    model = tiny()
    whole = memory_estimate(model, 4096, 6)
    for arguments in ({"replicas": 2}, {"accumulate": 2}):
        half = memory_estimate(model, 4096, 6, **arguments)
        assert half.rows == 2048
        assert half.activations == pytest.approx(whole.activations / 2)
    assert half.gradients == 4 * model.count_params()  # the sums of micro-batches
    model.compile("sgd", LOSS, accumulate=2)
    assert memory_estimate(model, 4096, 6) == half
    assert memory_estimate(model, 4096, 6, slots_per_weight=0).slots == 0
    recompute(model)
    assert memory_estimate(model, 4096, 6).activations < half.activations


def test_masked_positions_count(base):
    recompute(base, on=False)
    fewer, more = [memory_estimate(base, 32, 128, masked).activations for masked in (1, 20)]
    assert more - fewer == 32 * 19 * 30522 * 4
    assert memory_estimate(base, 32, 128).activations == more
