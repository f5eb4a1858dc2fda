r"""What packing saves: how full rows are, and real tokens a second, unpacked and packed.

    python benchmarks/packing.py --data state_union_128 state_union_512 --row-length 128 512

For each folder of `recipes/create_pretraining_data.py` and each row length that its examples
fit: the share of the rows' tokens that are real, one example a row and packed; the factor by
which real tokens a second should rise by that; and by which they do, when the same model trains
on batches of as many tokens. Reading, masking and packing are part of the time, and are also
timed alone. On a CPU the time is that of the process, so that whatever else runs on the machine
doesn't count.

Measured with the mini encoder on one core of a busy CPU, `--tokens 2048 --updates 3 --rounds 7
--rows 4000` (fill; factor of real tokens a second, good to some 0.05):

    corpus      examples  rows  unpacked  packed  predicted  measured
    state_union      128   128     0.955   0.995       1.04      1.05
    state_union      128   512     0.955   0.998       1.04      0.80
    state_union      512   512     0.909   0.998       1.10      1.15
    wikitext         128   128     0.953   0.988       1.04      1.01
    wikitext         128   512     0.953   0.998       1.05      0.81
    wikitext         512   512     0.886   0.998       1.13      1.17
    zh_wikipedia     128   128     0.894   0.957       1.07      1.06
    zh_wikipedia     128   512     0.894   0.995       1.11      0.89
    zh_wikipedia     512   512     0.643   0.943       1.47      1.43

Rows longer than the examples cost the attention its square, which counts in a narrow model on a
CPU. The short documents of the Chinese sample give examples of which two in three are longer
than half a row, so that no packing fills rows of 512 by more than 0.946.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

import keras_bert
from keras_bert import recipe
from keras_bert.data import batches, records


@dataclasses.dataclass(frozen=True)
class Args:
    """What packing saves: how full rows are, and real tokens a second, unpacked and packed."""

    data: tuple[str, ...]
    """Folders of create_pretraining_data.py."""
    row_length: tuple[int, ...] = (128, 512)
    """Row lengths; those shorter than a folder's examples are left out."""
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "mini"
    """The encoder's size."""
    tokens: int = 4096
    """Tokens of a batch, real or not."""
    updates: int = 4
    """Updates that are timed together."""
    rounds: int = 5
    """Times that each is timed, in turn; what's reported is their median."""
    rows: int = 2000
    """Rows over which fill is taken."""
    precision: Literal["float32", "mixed_bfloat16"] = "float32"
    """Keras's dtype policy."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(args.precision)
    clock = time.perf_counter if tf.config.list_physical_devices("GPU") else time.process_time

    # ---- Measure ---------------------------------------------------------------
    found = []
    for folder in args.data:
        length = records.read_manifest(folder)["settings"]["max_sequence_length"]
        for row_length in args.row_length:
            if row_length >= length:
                found.append(measure(folder, length, row_length, args, clock))
                print(*(f"{name} {value}" for name, value in found[-1].items()), sep=", ")
    return {**dataclasses.asdict(args), "measured": found}


def measure(folder: str, length: int, row_length: int, args: Args, clock: Any) -> dict[str, Any]:
    """Both ways of one folder at one row length."""
    ways = {"unpacked": (None, length), "packed": (row_length, row_length)}
    encoder = keras_bert.bert(keras_bert.BertConfig.of_size(args.size))
    fill, reading, trainers = {}, {}, {}
    for way, (rows_of, width) in ways.items():
        rows = max(1, args.tokens // width)
        data = batches.pretraining(folder, rows, seed=0, row_length=rows_of)
        started = clock()
        shares = [float(np.mean(x["padding_mask"] > 0)) for x, _, _ in
                  data.take(args.rows // rows).as_numpy_iterator()]  # fmt: skip
        fill[way] = statistics.mean(shares)
        reading[way] = fill[way] * width * rows * len(shares) / (clock() - started)
        trainers[way] = train(encoder, data, way == "packed", args.updates, clock)
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(args.rounds):
        for way, trainer in trainers.items():
            rates[way].append(next(trainer))
    speed = {way: statistics.median(each) for way, each in rates.items()}
    return {
        "data": os.path.basename(os.path.normpath(folder)),
        "examples": length,
        "rows": row_length,
        "fill_unpacked": round(fill["unpacked"], 4),
        "fill_packed": round(fill["packed"], 4),
        "factor_predicted": round(fill["packed"] / fill["unpacked"], 3),
        "factor_measured": round(speed["packed"] / speed["unpacked"], 3),
        "real_tokens_per_second_unpacked": round(speed["unpacked"]),
        "real_tokens_per_second_packed": round(speed["packed"]),
        "read_tokens_per_second_unpacked": round(reading["unpacked"]),
        "read_tokens_per_second_packed": round(reading["packed"]),
    }


def train(
    encoder: keras.Model, data: tf.data.Dataset, packed: bool, updates: int, clock: Any
) -> Iterator[float]:
    """Yields real tokens a second of some updates, again and again."""
    model = keras_bert.tasks.pretraining(encoder, packed=packed)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras_bert.training.AdamW(1e-4), {"masked_lm": loss, "next_sentence": loss})
    iterator = iter(data)
    model.train_on_batch(*next(iterator))  # compiles
    while True:
        started, real = clock(), 0
        for _ in range(updates):
            batch = next(iterator)
            real += int(tf.math.count_nonzero(batch[0]["padding_mask"]))
            model.train_on_batch(*batch)
        yield real / (clock() - started)


if __name__ == "__main__":
    recipe.run(main, Args)
