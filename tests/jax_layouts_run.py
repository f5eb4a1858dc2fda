"""Trains the tiny golden model on 8 devices that are one CPU: `python ... NAME output.npz`."""

from __future__ import annotations

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import keras
import numpy as np
from conftest import TESTS
from test_golden import CROSS_ENTROPY, assign, tiny_encoder

import keras_bert

BATCH, UPDATES = 8, 4


def arrays():
    rng = np.random.default_rng(0)
    rows = BATCH * UPDATES
    inputs = {
        "token_ids": rng.integers(1, 100, (rows, 12)).astype("int32"),
        "segment_ids": rng.integers(0, 2, (rows, 12)).astype("int32"),
        "padding_mask": (np.arange(12) < rng.integers(5, 13, rows)[:, None]).astype("int32"),
        "mask_positions": rng.integers(0, 5, (rows, 3)).astype("int32"),
    }
    labels = {
        "masked_lm": rng.integers(0, 100, (rows, 3)).astype("int32"),
        "next_sentence": rng.integers(0, 2, rows).astype("int32"),
    }
    weights = {
        "masked_lm": (np.arange(3) < rng.integers(0, 4, rows)[:, None]).astype("float32"),
        "next_sentence": np.ones(rows, "float32"),
    }
    return inputs, labels, weights


def main(name, output):
    layouts = {
        "one": lambda: None,
        "data": lambda: keras.distribution.DataParallel(),
        "model": lambda: keras_bert.training.model_parallel(2),
    }
    keras.distribution.set_distribution(layouts[name]())
    keras.utils.set_random_seed(1)
    model = keras_bert.tasks.pretraining(tiny_encoder())
    with np.load(TESTS / "golden" / "weights_tiny_pretraining.npz") as file:
        assign(model, dict(file))
    model.compile(
        keras_bert.training.AdamW(keras_bert.training.WarmupLinear(1e-3, 1, 8)), CROSS_ENTROPY
    )
    inputs, labels, weights = arrays()
    history = model.fit(
        inputs, labels, BATCH, sample_weight=weights, shuffle=False, verbose=0
    ).history
    if name == "model":
        kernel = model.get_layer("block_0").intermediate.kernel.value
        assert kernel.sharding.shard_shape(kernel.shape)[1] == kernel.shape[1] // 2
    values = {weight.path: keras.ops.convert_to_numpy(weight.value) for weight in model.weights}
    np.savez(output, loss=np.array(history["loss"]), **values)


if __name__ == "__main__":
    main(*sys.argv[1:])
