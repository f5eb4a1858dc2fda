"""Small folders of pretraining records, and the recipe run on them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import numpy as np
from conftest import TESTS

import keras_bert

RECIPE = TESTS.parent / "recipes" / "pretrain.py"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_records(folder, length, count=24, seed=0, one_pair=None):
    """Examples of counting sequences: B goes on where A ends, or starts anywhere.

    With `one_pair`, the segment ids are those of a pair in that example alone.
    """
    import tensorflow as tf

    from keras_bert.data import records
    from keras_bert.data.examples import Example

    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *(f"t{i}" for i in range(64))]) + "\n")
    tokenizer = keras_bert.WordPiece(folder / "vocab.txt")
    cls_id, sep_id = tokenizer.cls_id, tokenizer.sep_id
    rng = np.random.default_rng([seed, length])
    name = "examples-00000-of-00001.tfrecord"
    with tf.io.TFRecordWriter(str(folder / name)) as writer:
        for i in range(count):
            first = (length - 3) // 2
            second = length - 3 - first - int(rng.integers(3))
            start, random_next = int(rng.integers(60)), int(rng.integers(2))
            follows = int(rng.integers(60)) if random_next else start + first
            a = [5 + (start + k) % 63 for k in range(first)]
            b = [5 + (follows + k) % 63 for k in range(second)]
            example = Example(
                token_ids=[cls_id, *a, sep_id, *b, sep_id],
                segment_ids=[0] * (first + 2) + [int(one_pair in (None, i))] * (second + 1),
                next_sentence=random_next,
                works=(0, random_next),
            )
            writer.write(records.serialize(example))
    records.write_manifest(
        folder,
        settings={"max_sequence_length": length},
        tokenizer=tokenizer,
        counts={"examples": count},
        shards={name: (folder / name).stat().st_size},
    )
    return str(folder)


def make_data(folder):
    """Folders of lengths 16 and 24, each with one to evaluate on."""
    data = [write_records(folder / f"en{length}", length) for length in (16, 24)]
    dev = [write_records(folder / f"dev{length}", length, 40, seed=1) for length in (16, 24)]
    return {"data": tuple(data), "dev_data": tuple(dev), "phases": "16:0.6,24:0.4"}


def load_recipe():
    spec = importlib.util.spec_from_file_location("pretrain", RECIPE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["pretrain"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def command(output_dir, *flags, **arguments):
    """The recipe's command line."""
    words = [sys.executable, str(RECIPE), "--output-dir", str(output_dir), *flags]
    for name, value in arguments.items():
        words += [f"--{name.replace('_', '-')}"]
        words += [str(v) for v in (value if isinstance(value, tuple) else (value,))]
    return words


def start(words, **kwargs):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment["PYTHONPATH"] = str(TESTS.parent)
    return subprocess.Popen(words, env=environment | kwargs.pop("env", {}), text=True, **kwargs)


def weights(run):
    """The weights of a finished run, by their paths."""
    model = keras_bert.load(run / "preset").model
    return {weight.path: np.asarray(weight) for weight in model.weights}


def rows(run):
    """The run's history, without what clocks say."""
    from keras_bert.training.callbacks import read_history

    clocks = {"seconds", "tokens_per_second", "gflops_per_second", "data_wait"}
    return {k: v for k, v in read_history(run / "history.csv").items() if k not in clocks}
