r"""How fast a pretraining step is: sequences, tokens and model FLOP a second.

    python benchmarks/gpu_speed.py --size base --length 128 --batch-size 32

The step is that of `recipes/pretrain.py` under `mixed_bfloat16`, with dropout and AdamW,
compiled by XLA under `MirroredStrategy` over all GPUs of this host, on made-up data that's the
same each time, so that reading and masking cost nothing. `nox -s gpu` installs what it needs.

Not measured yet: nobody has run it on a GPU. To see that it works where there's none, and
nothing more:

    python benchmarks/gpu_speed.py --device cpu --size tiny --batch-size 2 --calls 3
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from importlib import metadata
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

import keras_bert
from keras_bert import recipe

# Masked positions of an example by its length: 15 % of the tokens, rounded up.
MASKED = {128: 20, 512: 77}


@dataclasses.dataclass(frozen=True)
class Args:
    """How fast a pretraining step is: sequences, tokens and model FLOP a second."""

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "base"
    """The encoder's size."""
    length: Literal[128, 512] = 128
    """Tokens of a sequence, none of them padding."""
    batch_size: int = 32
    """Sequences a device."""
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "mixed_bfloat16"
    """Keras's dtype policy."""
    device: Literal["gpu", "cpu"] = "gpu"
    """All GPUs of this host; or its CPU, one replica without a strategy, to try the script."""
    updates_per_call: int = 10
    """Updates that are timed together; Keras's `steps_per_execution`."""
    warm_up_calls: int = 3
    """Calls before the measurement; the first one compiles."""
    calls: int = 20
    """Calls that are timed; what's reported is their median."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    strategy = keras_bert.training.strategy("mirrored" if args.device == "gpu" else "one")
    devices = strategy.num_replicas_in_sync
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(args.precision)
    config = keras_bert.BertConfig.of_size(args.size)
    rows = args.batch_size * devices

    # ---- Model -----------------------------------------------------------------
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rate = keras_bert.training.WarmupLinear(1e-4, 10_000, 1_000_000)
    with strategy.scope():
        model = keras_bert.tasks.pretraining(keras_bert.bert(config))
        model.compile(
            keras_bert.training.AdamW(rate),
            {"masked_lm": loss, "next_sentence": loss},
            weighted_metrics={"masked_lm": ["accuracy"], "next_sentence": ["accuracy"]},
            steps_per_execution=args.updates_per_call,
            jit_compile=True,  # "auto" leaves XLA out under a strategy
        )

    # ---- Measure ---------------------------------------------------------------
    calls = args.warm_up_calls + args.calls
    timer = Timer()
    model.fit(
        made_up_batches(rows, args.length, config.vocabulary_size),
        steps_per_epoch=calls * args.updates_per_call,
        epochs=1,
        shuffle=False,
        verbose=0,
        callbacks=[timer],
    )
    seconds = [each / args.updates_per_call for each in timer.seconds[args.warm_up_calls :]]
    step = statistics.median(seconds)
    flops = model_flops(config, args.length)
    metrics = {
        **dataclasses.asdict(args),
        "devices": devices,
        "device_names": sorted({name_of(device) for device in visible_devices(args.device)}),
        "first_call_seconds": round(timer.seconds[0], 1),
        "step_milliseconds": round(1000 * step, 2),
        "slowest_step_milliseconds": round(1000 * max(seconds), 2),
        "sequences_per_second": round(rows / step, 1),
        "tokens_per_second": round(rows * args.length / step),
        "model_tflops_per_second": round(rows * flops / step / 1e12, 3),
        "loss": round(timer.loss, 4),
        "versions": {name: metadata.version(name) for name in ("keras", "tensorflow")},
    }
    print(
        f"{args.size}, {devices} x {args.batch_size} x {args.length}, {args.precision}: "
        f"{metrics['sequences_per_second']:,} sequences a second, "
        f"{metrics['tokens_per_second']:,} tokens a second, "
        f"{metrics['model_tflops_per_second']:,} model TFLOP a second"
    )
    return metrics


class Timer(keras.callbacks.Callback):
    """Seconds of every call, its results included."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self.seconds: list[float] = []
        self._started = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Reads the clock once the call's updates are done."""
        # A number has come back from the device, so all updates before it are done.
        self.loss = float(logs["loss"])
        now = time.perf_counter()
        self.seconds.append(now - self._started)
        self._started = now


def made_up_batches(rows: int, length: int, vocabulary_size: int) -> tf.data.Dataset:
    """One batch of random (inputs, labels, weights), as `keras_bert.data.pretraining` gives them.

    It comes again and again.
    """
    rng = np.random.default_rng(0)
    masked = MASKED[length]
    token_ids = rng.integers(0, vocabulary_size, (rows, length), np.int32)
    positions = rng.permuted(np.tile(np.arange(length, dtype=np.int32), (rows, 1)), axis=1)
    inputs = {
        "token_ids": token_ids,
        "segment_ids": np.repeat((np.arange(length) >= length // 2)[None], rows, 0).astype("int32"),
        "padding_mask": np.ones((rows, length), np.int32),
        "mask_positions": np.sort(positions[:, :masked], axis=1),
    }
    labels = {
        "masked_lm": rng.integers(0, vocabulary_size, (rows, masked), np.int32),
        "next_sentence": rng.integers(0, 2, rows, np.int32),
    }
    weights = {name: np.ones(label.shape, np.float32) for name, label in labels.items()}
    return tf.data.Dataset.from_tensors((inputs, labels, weights)).cache().repeat().prefetch(2)


def model_flops(config: keras_bert.BertConfig, length: int) -> float:
    """Operations of an update for one sequence: what the formulas need, recomputing nothing.

    A multiplication and an addition are two. Counted are the matrix products, and the backward
    pass is twice the forward pass.
    """
    width, masked = config.hidden_dim, MASKED[length]
    block = length * (4 * width**2 + 2 * width * config.intermediate_dim)  # the kernels
    block += 2 * length**2 * width  # scores, and the mix of values
    heads = masked * (width**2 + width * config.vocabulary_size) + width**2
    return 3 * 2.0 * (config.num_layers * block + heads)


def visible_devices(kind: str) -> list[Any]:
    return tf.config.list_physical_devices(kind.upper())


def name_of(device: Any) -> str:
    return tf.config.experimental.get_device_details(device).get("device_name", device.name)


if __name__ == "__main__":
    recipe.run(main, Args)
