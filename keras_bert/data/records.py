"""TFRecord shards of pretraining examples, with a manifest that says how they were made.

A folder of records holds `examples-00000-of-00008.tfrecord ...`, `vocab.txt` and, written last,
`manifest.json`. Each record is a `tf.train.Example` whose features are the rows of `SCHEMA`.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.data.examples import MIN_SEQUENCE_LENGTH, Example, Examples
from keras_bert.errors import InputError
from keras_bert.tokenizers import WordPiece

VERSION = 1
MANIFEST = "manifest.json"


class Feature(NamedTuple):
    """One feature of a record; None in `shape` is the example's own length."""

    key: str
    dtype: tf.DType  # once parsed; every integer is an int64 on disk
    shape: tuple[int | None, ...]
    meaning: str
    optional: bool = False  # zeros where a record lacks it


SCHEMA = (
    Feature("token_ids", tf.int32, (None,), "[CLS] A [SEP] B [SEP], neither padded nor masked"),
    Feature("segment_ids", tf.int32, (None,), "0 up to the first [SEP], 1 after it"),
    Feature(
        "next_sentence",
        tf.int32,
        (),
        "0 = B follows A, 1 = B is from another document (sentence_order: A and B are swapped)",
    ),
    Feature("works", tf.int32, (2,), "index of the input of A and of B"),
    Feature(
        "continues", tf.int32, (None,), "1 = of the same word as the token before it", optional=True
    ),
)


def serialize(example: Example) -> bytes:
    """Returns the example as a serialized `tf.train.Example`."""
    features = {}
    for feature in SCHEMA:
        value = getattr(example, feature.key)
        if value is None and feature.optional:
            continue
        values = value if feature.shape else [value]
        features[feature.key] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    message = tf.train.Example(features=tf.train.Features(feature=features))
    return message.SerializeToString(deterministic=True)


def serialize_all(examples: Examples) -> list[bytes]:
    """Returns what `serialize` would of each of many examples, ten times as fast.

    A `tf.train.Example` is a map from a key to numbers as varints, each part of it behind a tag
    and its length. The numbers of all examples are spelled at once.
    """
    where, ends = examples.token_positions()
    # In the order of their keys, as in protobuf's deterministic form.
    columns = {
        "continues": None if examples.continues is None else (examples.continues[where], ends),
        "next_sentence": (examples.next_sentence, np.arange(1, len(examples) + 1)),
        "segment_ids": (examples.segment_ids(), ends),
        "token_ids": (examples.token_ids[where], ends),
        "works": (examples.works.ravel(), np.arange(2, 2 * len(examples) + 1, 2)),
    }
    parts = [_entries(key, *column) for key, column in columns.items() if column is not None]
    return [
        b"".join((b"\x0a", _varint(sum(map(len, entries))), *entries))
        for entries in zip(*parts, strict=True)
    ]


def _entries(key: str, values: np.ndarray, ends: np.ndarray) -> list[bytes]:
    """The entries of one key in the maps of all examples, whose values end at `ends`."""
    spelled, widths = _varints(values)
    cuts = [0, *np.cumsum(widths)[ends - 1].tolist()]
    name = _field(b"\x0a", key.encode("ascii"))
    heads: dict[int, bytes] = {}  # by the number of bytes that follow
    entries = []
    for start, end in itertools.pairwise(cuts):
        size = end - start
        if size not in heads:
            # Example.features.feature = entry {key, value = Feature.int64_list.value, packed}
            body = _field(b"\x12", _field(b"\x1a", _field(b"\x0a", bytes(size))))
            heads[size] = _field(b"\x0a", name + body)[:-size]
        entries.append(heads[size] + spelled[start:end])
    return entries


def _varints(values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Whole numbers from 0 on, seven bits a byte, lowest first; and the bytes of each."""
    most = int(values.max(initial=0))
    if most < 128:
        return values.astype(np.uint8).tobytes(), np.ones(len(values), np.int64)
    spelling, used, widths = _varint_table(1 << most.bit_length())
    # Four bytes at once, of which those in use are kept.
    return spelling[values].view(np.uint8)[used[values].view(bool)].tobytes(), widths[values]


@functools.cache
def _varint_table(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each number below `size`: its four bytes, which of them are used, and their count."""
    rest = np.arange(size, dtype="<u4")
    spelling, used = np.zeros((2, size, 4), np.uint8)
    for i in range(4):
        used[:, i] = rest > 0 if i else True
        spelling[:, i] = (rest & 127) | (128 * (rest > 127))
        rest >>= 7
    return spelling.view("<u4")[:, 0], used.view("<u4")[:, 0], used.sum(-1, dtype=np.int64)


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


@functools.lru_cache(10_000)
def _varint(value: int) -> bytes:
    spelled = bytearray()
    while value > 127:
        spelled.append(value & 127 | 128)
        value >>= 7
    spelled.append(value)
    return bytes(spelled)


def parse(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the features of one serialized example, each of the dtype and shape in `SCHEMA`."""
    on_disk = {
        feature.key: tf.io.RaggedFeature(tf.int64)
        if feature.shape == (None,)
        else tf.io.FixedLenFeature(feature.shape, tf.int64)
        for feature in SCHEMA
    }
    parsed = tf.io.parse_single_example(serialized, on_disk)
    for feature in SCHEMA:
        if feature.optional:
            lacking = tf.size(parsed["token_ids"]) - tf.size(parsed[feature.key])
            parsed[feature.key] = tf.pad(parsed[feature.key], [[0, lacking]])
    return {feature.key: tf.cast(parsed[feature.key], feature.dtype) for feature in SCHEMA}


def shard_names(num_shards: int) -> list[str]:
    """The names of a folder's shards."""
    return [f"examples-{i:05d}-of-{num_shards:05d}.tfrecord" for i in range(num_shards)]


def write_shard(serialized: Iterable[bytes], path: str | os.PathLike[str]) -> None:
    """Writes one file of records, which gets its name when it's complete."""
    path = os.fspath(path)
    with tf.io.TFRecordWriter(f"{path}.{os.getpid()}.unfinished") as writer:
        for record in serialized:
            writer.write(record)
    tf.io.gfile.rename(f"{path}.{os.getpid()}.unfinished", path, overwrite=True)


def write_shards(
    examples: Iterable[Example], folder: str | os.PathLike[str], num_shards: int
) -> dict[str, int]:
    """Deals examples of your own out to `num_shards` files in turn; returns name -> bytes."""
    folder = os.fspath(folder)
    tf.io.gfile.makedirs(folder)
    made = [serialize(example) for example in examples]
    sizes = {}
    for i, name in enumerate(shard_names(num_shards)):
        path = tf.io.gfile.join(folder, name)
        write_shard(made[i::num_shards], path)
        sizes[name] = tf.io.gfile.stat(path).length
    return sizes


def write_manifest(
    folder: str | os.PathLike[str],
    *,
    settings: dict[str, Any],
    tokenizer: Any,
    counts: dict[str, int],
    shards: dict[str, int],
) -> dict[str, Any]:
    """Writes `vocab.txt`, then `manifest.json`, with which the folder is complete.

    Args:
        folder: Where the shards are.
        settings: What the examples were made with; at least `max_sequence_length`.
        tokenizer: The `WordPiece` that made the ids.
        counts: At least `examples`.
        shards: Name -> bytes of the shards, in order.

    Returns:
        The manifest, as `read_manifest` returns it.
    """
    folder = os.fspath(folder)
    manifest = {
        "version": VERSION,
        "settings": settings,
        "tokenizer": {
            "vocabulary_hash": tokenizer.vocabulary_hash,
            "vocabulary_size": tokenizer.vocabulary_size,
            "pad_id": tokenizer.pad_id,
            "unk_id": tokenizer.unk_id,
            "cls_id": tokenizer.cls_id,
            "sep_id": tokenizer.sep_id,
            "mask_id": tokenizer.mask_id,
            "special_ids": sorted(tokenizer.special_ids),
            "config": tokenizer.get_config(),
        },
        "counts": counts,
        "schema": {
            feature.key: [feature.dtype.name, list(feature.shape), feature.meaning]
            for feature in SCHEMA
        },
        "shards": shards,
    }
    vocabulary = "".join(f"{token}\n" for token in tokenizer.vocabulary)
    for name, text in (
        ("vocab.txt", vocabulary),
        (MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"),
    ):
        path = tf.io.gfile.join(folder, name)
        with tf.io.gfile.GFile(f"{path}.unfinished", "w") as file:
            file.write(text)
        tf.io.gfile.rename(f"{path}.unfinished", path, overwrite=True)
    return manifest


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the manifest of a complete folder of records.

    Raises:
        InputError: there is no such folder, it's unfinished, was made by another version of
            this package, or lacks a shard.
    """
    folder = os.fspath(folder)
    if not tf.io.gfile.isdir(folder):
        raise InputError(
            f"{folder} isn't a folder: make it with recipes/create_pretraining_data.py."
        )
    names = set(tf.io.gfile.listdir(folder))
    if MANIFEST not in names:
        if any(name.startswith("examples-") for name in names):
            raise InputError(
                f"{folder} is unfinished: it holds examples but no {MANIFEST}; "
                "run recipes/create_pretraining_data.py again with --resume."
            )
        raise InputError(f"{folder} holds no {MANIFEST}: it isn't a folder of pretraining data.")

    path = tf.io.gfile.join(folder, MANIFEST)
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            manifest = json.loads(file.read())
        if manifest["version"] != VERSION:
            raise ValueError(f"version {manifest['version']} in place of {VERSION}")
        _check_fields(manifest)
        shards = dict(manifest["shards"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} isn't a manifest of pretraining data ({error!r}): make the data again."
        ) from error
    for name in ("vocab.txt", *shards):
        if name not in names:
            raise InputError(f"{folder} lacks {name}: copy it there, or make the data again.")
    for name, size in shards.items():
        found = tf.io.gfile.stat(tf.io.gfile.join(folder, name)).length
        if found != size:
            raise InputError(
                f"{folder}/{name} has {found} bytes in place of {size}: copy it again, or make "
                "the data again."
            )
    return manifest


def _check_fields(manifest: dict[str, Any]) -> None:
    """What training reads must be there and make sense."""
    tokenizer, length = manifest["tokenizer"], manifest["settings"]["max_sequence_length"]
    size = tokenizer["vocabulary_size"]
    whole = [length, size, manifest["counts"]["examples"], tokenizer["pad_id"]]
    ids = [tokenizer["mask_id"], *tokenizer["special_ids"]]
    if not all(type(number) is int and number >= 0 for number in (*whole, *ids)):
        raise ValueError("a size, a count or an id isn't a whole number")
    if length < MIN_SEQUENCE_LENGTH or max(ids) >= size:
        raise ValueError("max_sequence_length is too small, or an id outside the vocabulary")
    if not isinstance(tokenizer["config"]["lowercase"], bool) or not manifest["shards"]:
        raise ValueError("lowercase isn't true or false, or there are no shards")


def check_manifest(
    manifest: dict[str, Any],
    folder: str | os.PathLike[str],
    *,
    tokenizer: WordPiece | None = None,
    vocabulary_size: int | None = None,
    max_sequence_length: int | None = None,
) -> None:
    """Refuses data that a model can't be trained on, and says which setting differs.

    Args:
        manifest: Of `folder`, from `read_manifest`.
        folder: For the message.
        tokenizer: Of the model (or of the other data): the same tokens, the same lower-casing.
        vocabulary_size: Rows of the model's token table; the data's ids must be below it.
        max_sequence_length: Rows of the model's position table; no example may be longer.

    Raises:
        InputError: naming the setting and both values.
    """
    made_with, settings = manifest["tokenizer"], manifest["settings"]
    if tokenizer is not None:
        differing = [
            f"{name} is {made_with['config'].get(name)}, expected {value}"
            for name, value in tokenizer.get_config().items()
            if value != made_with["config"].get(name)
        ]
        if tokenizer.vocabulary_hash != made_with["vocabulary_hash"]:
            differing.append("the vocabulary is another one")
        if differing:
            raise InputError(
                f"{folder}: {'; '.join(differing)}: make the data with the model's vocab.txt and "
                "the same --lowercase or --no-lowercase."
            )
    if vocabulary_size is not None and vocabulary_size < made_with["vocabulary_size"]:
        raise InputError(
            f"{folder}: vocabulary_size is {made_with['vocabulary_size']}, and the model has only "
            f"{vocabulary_size}: make the data with the model's vocab.txt."
        )
    if max_sequence_length is not None and max_sequence_length < settings["max_sequence_length"]:
        raise InputError(
            f"{folder}: max_sequence_length is {settings['max_sequence_length']}, and the model's "
            f"position table ends at {max_sequence_length}: make the data with a smaller "
            "--max-sequence-length."
        )


# What TensorFlow raises, among others, where a record is damaged or holds what it mustn't.
ReadError = tf.errors.OpError


def explained(error: Exception, folder: str | os.PathLike[str]) -> InputError | None:
    """An error of iterating as a sentence; None where it isn't the records' fault.

    A damaged one is looked for in all shards, as TensorFlow doesn't name the file.
    """
    rules = r"\w+ of a record must be in \[0, \d+\)|a record has more than \d+ tokens"
    fault = re.search(rules, str(error))
    if fault:
        return InputError(
            f"{folder}: {fault.group()}: make the data again, or give its vocabulary."
        )
    for path in tf.io.gfile.glob(tf.io.gfile.join(os.fspath(folder), "*tfrecord*")):
        try:
            for _ in tf.data.TFRecordDataset(path):
                pass
        except tf.errors.DataLossError:
            return InputError(f"{path} is damaged: copy it again, or make the data again.")
    return None


def read_serialized(folder: str | os.PathLike[str]) -> tf.data.Dataset:
    """The serialized examples of a complete folder, shard after shard."""
    folder = os.fspath(folder)
    shards = read_manifest(folder)["shards"]
    return tf.data.TFRecordDataset([tf.io.gfile.join(folder, name) for name in shards])


def read_examples(folder: str | os.PathLike[str]) -> tf.data.Dataset:
    """The examples of a complete folder as dicts with the keys of `SCHEMA`, in file order."""
    return read_serialized(folder).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
