"""What the pretraining recipe counts with: phases, FLOPs, and the time that data takes."""

from __future__ import annotations

import shutil
import time

import keras
import numpy as np
import pytest
from pretraining_records import write_records

import keras_bert
from keras_bert.errors import InputError
from keras_bert.evaluation import token_counts
from keras_bert.training import throughput, updates


def test_paper_phases():
    """Devlin et al., 2018, appendix A.2: 90 % of the updates at 128, 10 % at 512."""
    first, second = updates.plan_phases("", [512, 128], 1_000_000, 100_000)
    assert (first.length, first.start, first.end, first.first_epoch) == (128, 0, 900_000, 0)
    assert (second.length, second.start, second.end) == (512, 900_000, 1_000_000)
    assert second.first_epoch == 9


@pytest.mark.parametrize("every", [1, 3, 4, 7, 50])
@pytest.mark.parametrize("done", range(13))
def test_fits_cover_a_phase_once(every, done):
    _, phase = updates.plan_phases("16:0.25,32:0.75", [16, 32], 13, every)
    assert (phase.start, phase.end) == (3, 13)
    done = max(done, phase.start)
    ends = []
    for before, first, last, steps in updates.fits(phase, done, every):
        assert before == done
        assert first == phase.first_epoch + (done - phase.start) // every
        for epoch in range(first, last):
            done += steps
            ends.append((epoch, done))
    # Every epoch ends where it would have, had the phase been trained in one go.
    for epoch, end in ends:
        assert end == min(phase.start + (epoch - phase.first_epoch + 1) * every, phase.end)
    assert done == phase.end


def test_model_flops_by_hand():
    config = keras_bert.BertConfig(vocabulary_size=7, num_layers=2, num_heads=1, hidden_dim=4,
                                   intermediate_dim=8)  # fmt: skip
    token = 2 * (4 * 16 + 2 * 32) + 4 * 5 * 4  # kernels, attention over 5 positions
    row = 5 * 2 * token + 3 * 2 * (16 + 28) + 2 * (16 + 8)
    assert throughput.pretraining_flops(config, 6, length=5, masked=3) == 3 * 6 * row


def test_model_flops_of_bert_base():
    """About 6 for each weight in a matrix and each token (Kaplan et al., 2020, section 2.1)."""
    config = keras_bert.BertConfig()
    flops = throughput.pretraining_flops(config, 1, length=128, masked=20)
    blocks = 12 * (4 * 768**2 + 2 * 768 * 3072)
    assert flops == pytest.approx(6 * blocks * 128, rel=0.1)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("TPU v5 lite", 197e12),
        ("TPU v4", 275e12),
        ("tpu v5e-8", 197e12),
        ("tpu v6e-4", 918e12),
        ("NVIDIA GeForce RTX 3060", None),
        ("", None),
    ],
)
def test_peaks(name, peak):
    assert throughput.peak_flops(name) == peak


def test_columns():
    known = throughput.Throughput(tokens=1000, flops=2e12, peak=1e13)
    assert known.columns(2.5) == {
        "tokens_per_second": 2500,
        "gflops_per_second": 5000,
        "flops_utilisation": 0.5,
    }
    assert known.text(2.5) == "2,500 tokens/s  50% of peak"
    unknown = throughput.Throughput(tokens=1000, flops=2e12, peak=None)
    assert unknown.text(2.5) == "2,500 tokens/s  5,000 GFLOP/s"
    assert keras.backend.backend() in ("tensorflow", "jax", "torch")
    assert throughput.device_name() == "" or throughput.device_name()


def test_waiting():
    import tensorflow as tf

    from keras_bert.data.waiting import Waiting

    def slow(x):
        return tf.numpy_function(lambda x: time.sleep(0.05) or x, [x], x.dtype)

    batches = tf.data.Dataset.range(8).map(lambda x: ({"a": x}, {"b": [x, slow(x)]}))
    waiting = Waiting()
    watched = waiting.watch(batches)
    assert int(watched.cardinality()) == 8
    assert [int(inputs["a"]) for inputs, _ in watched] == list(range(8))
    assert waiting.seconds >= 8 * 0.05
    before = waiting.seconds
    fast = waiting.watch(tf.data.Dataset.range(8))
    for _ in fast:
        time.sleep(0.05)
    assert waiting.seconds - before < 0.2


def test_counted():
    import tensorflow as tf

    from keras_bert.data.waiting import counted

    batches = tf.data.Dataset.range(7).filter(lambda x: x % 2 == 0)
    assert int(batches.cardinality()) < 0
    assert int(counted(batches).cardinality()) == 4
    assert list(counted(batches).as_numpy_iterator()) == [0, 2, 4, 6]


def test_token_counts():
    batch = (
        {
            "token_ids": np.array([[2, 4, 6, 0], [2, 7, 4, 3]]),
            "padding_mask": np.array([[1, 1, 1, 0], [1, 1, 1, 1]]),
            "mask_positions": np.array([[1, 0], [2, 1]]),
        },
        {"masked_lm": np.array([[5, 9], [6, 5]])},
        {"masked_lm": np.array([[1, 0], [1, 1.0]])},
    )
    # Rows were 2 5 6 and 2 5 6 3.
    np.testing.assert_array_equal(token_counts([batch], 8), [0, 0, 2, 1, 0, 2, 2, 0])


def test_other_data_is_not_resumed(tmp_path):
    """The run folder keeps how its data was made."""
    pretraining = pytest.importorskip("keras_bert.pretraining")
    folder = write_records(tmp_path / "records", 16)
    part = pretraining.Part(updates.Phase(16, 0, 4, 0), folder, {}, None, "", None, None)
    for _ in range(2):
        pretraining.keep_manifests(tmp_path / "manifest.json", [part])
    shutil.rmtree(folder)
    write_records(tmp_path / "records", 16, count=7)
    with pytest.raises(InputError, match="records holds other data than this run"):
        pretraining.keep_manifests(tmp_path / "manifest.json", [part])
