"""TFRecords of Google's `create_pretraining_data.py`, and NVIDIA's, which have the same features.

Their examples are padded, and masked once and for all: a copy under other masks is an example
more. They tell nothing of their vocabulary; training needs only its size, which the model has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError

# Feature -> what it's called here. T is `max_seq_length`, M `max_predictions_per_seq`.
INPUTS = {  # (T,) and (M,)
    "input_ids": "token_ids",
    "segment_ids": "segment_ids",
    "input_mask": "padding_mask",
    "masked_lm_positions": "mask_positions",
}
LABELS = {"masked_lm_ids": "masked_lm", "next_sentence_labels": "next_sentence"}  # (M,), (1,)
WEIGHTS = {"masked_lm_weights": "masked_lm"}  # (M,), floats

_SHARD = re.compile(r"masked-\d{5}-of-\d{5}\.tfrecord(\.unfinished)?")

Batch = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


def find(path: str | os.PathLike[str]) -> list[str]:
    """The TFRecord files of a folder, a file's path or a pattern such as `data/*.tfrecord*`.

    Those that an interrupted `write` has left unfinished are passed over.
    """
    path = os.fspath(path)
    if tf.io.gfile.isdir(path):
        names = tf.io.gfile.listdir(path)
        found = [tf.io.gfile.join(path, name) for name in names if "tfrecord" in name]
    else:
        found = tf.io.gfile.glob(path)
    return sorted(name for name in found if not name.endswith(".unfinished"))


def are_here(path: str | os.PathLike[str]) -> bool:
    """Whether these are Google's records, told by the first one's features."""
    try:
        return {"input_ids", "masked_lm_positions"} <= _first(find(path)).keys()
    except InputError:
        return False


def read_sizes(path: str | os.PathLike[str]) -> dict[str, int]:
    """`max_sequence_length` T and `num_positions` M of the examples, from the first one.

    Raises:
        InputError: there are no records; the first lacks a feature, or its lengths differ.
    """
    files = find(path)
    if not files:
        raise InputError(f"{path} holds no TFRecord files: check the path.")
    first = _first(files)
    names = [*INPUTS, *LABELS, *WEIGHTS]
    lacking = [name for name in names if name not in first]
    if lacking:
        raise InputError(
            f"{files[0]}: the first record lacks {', '.join(lacking)}: it wasn't made by "
            "Google's create_pretraining_data.py."
        )
    length, num_positions = first["input_ids"], first["masked_lm_positions"]
    expected = dict.fromkeys(names, num_positions) | {
        **dict.fromkeys(("input_ids", "segment_ids", "input_mask"), length),
        "next_sentence_labels": 1,
    }
    for name in names:
        if first[name] != expected[name] or not first[name]:
            raise InputError(
                f"{files[0]}: {name} of the first record has {first[name]} values in place of "
                f"{expected[name]}: make the data again."
            )
    return {"max_sequence_length": length, "num_positions": num_positions}


def _first(files: list[str]) -> dict[str, int]:
    """Feature -> number of values, of the first record there is."""
    if not files:
        raise InputError("There are no TFRecord files: check the path.")
    for file in files:
        try:
            for serialized in tf.data.TFRecordDataset(file).take(1).as_numpy_iterator():
                features = tf.train.Example.FromString(serialized).features.feature
                return {name: _num_values(feature) for name, feature in features.items()}
        except (tf.errors.OpError, ValueError) as error:
            raise InputError(f"{file} isn't a file of TFRecords: {error}.") from error
        except Exception as error:  # protobuf's DecodeError, whose module moves with its version
            raise InputError(f"{file}: the first record isn't a tf.train.Example.") from error
    raise InputError(f"{files[0]} and the other files hold no records: make the data again.")


def _num_values(feature: Any) -> int:
    kind = feature.WhichOneof("kind")
    return len(getattr(feature, kind).value) if kind else 0


def read_serialized(path: str | os.PathLike[str]) -> tf.data.Dataset:
    """The serialized examples, file after file."""
    return tf.data.TFRecordDataset(find(path))


def parse(
    serialized: tf.Tensor,
    max_sequence_length: int,
    num_positions: int,
    vocabulary_size: int | None = None,
) -> Batch:
    """A batch of serialized examples, string (B,), as (inputs, labels, weights).

    The shapes are those of `keras_bert.data.pretraining`.

    Args:
        serialized: See above.
        max_sequence_length: T, from `read_sizes`.
        num_positions: M, from there too.
        vocabulary_size: Of the model. None: ids may be anything that an int32 holds.

    Raises:
        tf.errors.InvalidArgumentError: in iterating, an example has other lengths, an id outside
            the vocabulary, a segment other than 0 and 1, or a position beyond its end.
    """
    length = {"input_ids", "segment_ids", "input_mask"}
    features = {
        name: tf.io.FixedLenFeature([max_sequence_length if name in length else num_positions],
                                    tf.float32 if name in WEIGHTS else tf.int64)
        for name in (*INPUTS, *LABELS, *WEIGHTS)
    } | {"next_sentence_labels": tf.io.FixedLenFeature([], tf.int64)}  # fmt: skip
    parsed = tf.io.parse_example(serialized, features)
    num_tokens = 2**31 if vocabulary_size is None else vocabulary_size
    for name, limit in (
        ("input_ids", num_tokens),
        ("masked_lm_ids", num_tokens),
        ("segment_ids", 2),
        ("masked_lm_positions", max_sequence_length),
    ):
        message = f"{name} of a record must be in [0, {limit})"
        tf.debugging.assert_non_negative(parsed[name], message)
        tf.debugging.assert_less(parsed[name], tf.constant(limit, tf.int64), message)

    inputs = {ours: tf.cast(parsed[theirs], tf.int32) for theirs, ours in INPUTS.items()}
    labels = {ours: tf.cast(parsed[theirs], tf.int32) for theirs, ours in LABELS.items()}
    weights = {
        "masked_lm": parsed["masked_lm_weights"],
        "next_sentence": tf.ones_like(labels["next_sentence"], tf.float32),
    }
    return inputs, labels, weights


def write(batches: Iterable[Batch], folder: str | os.PathLike[str], num_shards: int) -> int:
    """Writes masked batches as Google's records; returns the number of examples.

    N copies of a folder of ours, each under masks of its own, are N passes over it:

    ```python
    copies = (
        batch
        for copy in range(N)
        for batch in keras_bert.data.pretraining(data, 512, seed + copy, training=False)
    )
    google_records.write(copies, folder, num_shards=8)
    ```

    The examples are dealt out to the shards in turn, in the order given; training shuffles them.
    Shards of an earlier call are replaced, whatever their number.

    Args:
        batches: (inputs, labels, weights) of `keras_bert.data.pretraining`, not packed.
        folder: The shards are `masked-00000-of-00008.tfrecord ...` there; they get their names
            when all of them are complete, and then those of another number are removed.
        num_shards: How many.
    """
    folder = os.fspath(folder)
    tf.io.gfile.makedirs(folder)
    names = [f"masked-{i:05d}-of-{num_shards:05d}.tfrecord" for i in range(num_shards)]
    paths = [tf.io.gfile.join(folder, name) for name in names]
    writers = [tf.io.TFRecordWriter(f"{path}.unfinished") for path in paths]
    count = 0
    try:
        for batch in batches:
            for serialized in _serialized(batch):
                writers[count % num_shards].write(serialized)
                count += 1
    finally:
        for writer in writers:
            writer.close()
    for path in paths:
        tf.io.gfile.rename(f"{path}.unfinished", path, overwrite=True)
    # An earlier call's would be read along with these.
    for name in tf.io.gfile.listdir(folder):
        if name not in names and _SHARD.fullmatch(name):
            tf.io.gfile.remove(tf.io.gfile.join(folder, name))
    return count


def _serialized(batch: Batch) -> Iterable[bytes]:
    inputs, labels, weights = (
        {name: np.asarray(value) for name, value in part.items()} for part in batch
    )
    if "sequence_starts" in inputs:
        raise ValueError("`batches` must not be packed. Received: inputs with sequence_starts.")
    named = (
        {theirs: inputs[ours] for theirs, ours in INPUTS.items()}
        | {theirs: labels[ours] for theirs, ours in LABELS.items()}
        | {theirs: weights[ours] for theirs, ours in WEIGHTS.items()}
    )
    for i in range(len(inputs["token_ids"])):
        example = tf.train.Example()
        for name, values in named.items():
            row = np.atleast_1d(values[i]).tolist()
            feature = example.features.feature[name]
            (feature.float_list if name in WEIGHTS else feature.int64_list).value.extend(row)
        yield example.SerializeToString(deterministic=True)
