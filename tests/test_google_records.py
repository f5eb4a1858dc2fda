"""TFRecords of Google's and NVIDIA's `create_pretraining_data.py`."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from test_batches import as_list, assert_equal, examples_of, make_folder

from keras_bert.data import batches, google_records
from keras_bert.errors import InputError

T, M = 8, 2
ROWS = [
    {
        "input_ids": [2, 5, 4, 3, 7, 3, 0, 0],
        "input_mask": [1, 1, 1, 1, 1, 1, 0, 0],
        "segment_ids": [0, 0, 0, 0, 1, 1, 0, 0],
        "masked_lm_positions": [2, 0],
        "masked_lm_ids": [6, 0],
        "masked_lm_weights": [1.0, 0.0],
        "next_sentence_labels": [1],
    },
    {
        "input_ids": [2, 8, 9, 3, 4, 4, 10, 3],
        "input_mask": [1] * 8,
        "segment_ids": [0] * 4 + [1] * 4,
        "masked_lm_positions": [4, 5],
        "masked_lm_ids": [11, 12],
        "masked_lm_weights": [1.0, 1.0],
        "next_sentence_labels": [0],
    },
]


def serialized(row):
    """Written out apart from the package: floats are floats, all else int64."""
    features = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=values))
        if "weights" in name
        else tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for name, values in row.items()
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString()


def write(path, rows):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(serialized(row))
    return path


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "google").mkdir()
    write(tmp_path / "google" / "tf_examples.tfrecord", ROWS)
    return tmp_path / "google"


def test_google_records_become_batches(folder):
    expected = (
        {
            "token_ids": [ROWS[0]["input_ids"], ROWS[1]["input_ids"]],
            "segment_ids": [ROWS[0]["segment_ids"], ROWS[1]["segment_ids"]],
            "padding_mask": [ROWS[0]["input_mask"], [1] * 8],
            "mask_positions": [[2, 0], [4, 5]],
        },
        {"masked_lm": [[6, 0], [11, 12]], "next_sentence": [1, 0]},
        {"masked_lm": [[1, 0], [1, 1]], "next_sentence": [1, 1]},
    )
    for path in (folder, folder / "tf_examples.tfrecord", f"{folder}/*.tfrecord"):
        [batch] = as_list(batches.pretraining(path, 2, training=False))
        for part, rows in zip(batch, expected, strict=True):
            assert {name: array.tolist() for name, array in part.items()} == rows
        assert {x.dtype.name for part in batch[:2] for x in part.values()} == {"int32"}
        assert {x.dtype.name for x in batch[2].values()} == {"float32"}


def test_training_is_endless_shuffled_and_goes_on(folder):
    dataset = batches.pretraining(folder, 3, seed=5)
    assert dataset.element_spec[0]["token_ids"] == tf.TensorSpec((3, T), tf.int32)
    first = as_list(dataset.take(20))
    assert_equal(as_list(batches.pretraining(folder, 3, seed=5).skip(12).take(8)), first[12:])
    assert_equal(as_list(batches.pretraining(folder, 3, seed=5, start=13).take(7)), first[13:])
    tokens = np.concatenate([inputs["token_ids"][:, 1] for inputs, _, _ in first])
    passes = tokens.reshape(30, 2)
    assert (np.sort(passes, 1) == [5, 8]).all() and len(set(passes[:, 0])) == 2


def test_packed(folder):
    packed = batches.pretraining(folder, 1, training=False, row_length=16)
    assert sorted(examples_of(packed)) == sorted(
        examples_of(batches.pretraining(folder, 2, training=False))
    )


def test_static_masks_of_our_own_records(tmp_path):
    """Copies under masks of their own, written and read again."""
    ours = make_folder(tmp_path / "ours")
    copies = [batches.pretraining(ours, 7, seed, training=False) for seed in (1, 2, 3)]
    count = google_records.write((b for copy in copies for b in copy), tmp_path / "static", 2)
    assert count == 150
    assert sorted(path.name for path in (tmp_path / "static").iterdir()) == [
        "masked-00000-of-00002.tfrecord", "masked-00001-of-00002.tfrecord",
    ]  # fmt: skip
    again = examples_of(batches.pretraining(tmp_path / "static", 9, training=False))
    assert sorted(again) == sorted(e for copy in copies for e in examples_of(copy))
    # Each example is there thrice, mostly under three masks.
    assert len({e[:4] for e in again}) > 110 and len({e[0] for e in again}) <= 50
    assert google_records.read_sizes(tmp_path / "static") == {
        "max_sequence_length": 16, "num_positions": 2,
    }  # fmt: skip
    with pytest.raises(ValueError, match="must not be packed"):
        google_records.write(
            batches.pretraining(ours, 2, training=False, row_length=32), tmp_path / "packed", 1
        )
    assert not list((tmp_path / "packed").glob("*.tfrecord"))


def test_shards_of_another_write_are_not_read(tmp_path):
    """Neither those of another number, nor what an interrupted one has left."""
    ours, folder = make_folder(tmp_path / "ours", count=8), tmp_path / "static"
    dataset = batches.pretraining(ours, 4, training=False)
    google_records.write(dataset, folder, 3)
    write(folder / "masked-of-my-own.tfrecord", [])

    def fail():
        yield from dataset
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        google_records.write(fail(), folder, 4)
    for path in (folder, f"{folder}/*.tfrecord*"):
        assert len(google_records.find(path)) == 4
        assert len(examples_of(batches.pretraining(path, 4, training=False))) == 8
    google_records.write(dataset, folder, 2)
    assert sorted(path.name for path in folder.iterdir()) == [
        "masked-00000-of-00002.tfrecord", "masked-00001-of-00002.tfrecord",
        "masked-of-my-own.tfrecord",
    ]  # fmt: skip


@pytest.mark.parametrize("choice", [{"masking": "whole_word"}, {"replacements": "all"}])
def test_what_is_masked_already_cannot_be_masked_otherwise(folder, choice):
    with pytest.raises(InputError, match="google: its records are masked already"):
        batches.pretraining(folder, 2, **choice)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segment_ids": [0] * 7}, "segment_ids of the first record has 7 values in place of 8"),
        ({"masked_lm_weights": [1.0]}, "masked_lm_weights .* has 1 values in place of 2"),
        ({"next_sentence_labels": None}, "the first record lacks next_sentence_labels"),
    ],
)
def test_a_first_record_of_another_make(tmp_path, change, message):
    row = {name: value for name, value in (ROWS[0] | change).items() if value is not None}
    path = write(tmp_path / "a.tfrecord", [row])
    with pytest.raises(InputError, match=f"a.tfrecord: .*{message}"):
        batches.pretraining(path, 1)


def test_other_files(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.tfrecord").write_text("no records at all", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty" / "a.tfrecord", [])
    for name, message in (("text", "isn't a file of TFRecords"), ("empty", "hold no records")):
        assert not google_records.are_here(tmp_path / name)
        with pytest.raises(InputError, match=message):
            google_records.read_sizes(tmp_path / name)
        with pytest.raises(InputError, match=r"holds no manifest\.json"):
            batches.pretraining(tmp_path / name, 1)
    with pytest.raises(InputError, match="holds no TFRecord files"):
        google_records.read_sizes(tmp_path / "none")
    with tf.io.TFRecordWriter(str(tmp_path / "other.tfrecord")) as writer:
        writer.write(b"not an example")
    with pytest.raises(InputError, match=r"isn't a tf\.train\.Example"):
        google_records.read_sizes(tmp_path / "other.tfrecord")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": [2, -1] + [0] * 6}, r"input_ids of a record must be in \[0, 13\)"),
        ({"input_ids": [2, 13] + [0] * 6}, r"input_ids of a record must be in \[0, 13\)"),
        ({"masked_lm_ids": [13, 0]}, r"masked_lm_ids of a record must be in \[0, 13\)"),
        ({"segment_ids": [2] + [0] * 7}, r"segment_ids of a record must be in \[0, 2\)"),
        ({"masked_lm_positions": [8, 0]}, r"masked_lm_positions of a record must be in \[0, 8\)"),
        ({"input_ids": [2, 3]}, "input_ids"),
    ],
)
def test_a_later_record_with_faults(tmp_path, change, message):
    path = write(tmp_path / "a.tfrecord", [ROWS[0], ROWS[1] | change])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        as_list(batches.pretraining(path, 2, training=False, vocabulary_size=13))


def test_ids_of_an_unknown_vocabulary(tmp_path):
    for token_id, is_fine in ((2**31 - 1, True), (2**31, False)):
        row = ROWS[0] | {"input_ids": [2, token_id] + [0] * 6}
        dataset = batches.pretraining(write(tmp_path / "a", [row]), 1, training=False)
        if is_fine:
            assert as_list(dataset)[0][0]["token_ids"][0, 1] == token_id
        else:
            with pytest.raises(tf.errors.InvalidArgumentError, match="input_ids of a record"):
                as_list(dataset)
