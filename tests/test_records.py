import json
import re

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.data import batches, records
from keras_bert.data.examples import Example, Examples
from keras_bert.errors import InputError
from keras_bert.tokenizers import WordPiece

LENGTH = 16


def make_tokenizer():
    return WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(95))])


def make_examples(count):
    rng = np.random.default_rng(0)
    examples = []
    for i in range(count):
        a, b = (rng.integers(5, 100, rng.integers(1, 7)).tolist() for _ in "ab")
        # The first token tells the example.
        examples.append(
            Example(
                [2, 5 + i, *a, 3, *b, 3], [0] * (len(a) + 3) + [1] * (len(b) + 1), i % 2, (0, i)
            )
        )
    return examples


def make_folder(folder, count=23, num_shards=3):
    shards = records.write_shards(make_examples(count), folder, num_shards)
    records.write_manifest(
        folder,
        settings={"max_sequence_length": LENGTH},
        tokenizer=make_tokenizer(),
        counts={"examples": count},
        shards=shards,
    )
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("records"))


def assert_equal(first, second):
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)


def as_list(dataset):
    return list(dataset.as_numpy_iterator())


def test_records_come_back_as_the_schema_says(folder):
    examples = make_examples(23)
    dealt = [examples[i] for shard in range(3) for i in range(shard, 23, 3)]
    parsed = as_list(records.read_examples(folder))
    assert len(parsed) == 23
    for row, example in zip(parsed, dealt, strict=True):
        assert list(row) == [feature.key for feature in records.SCHEMA]
        for feature in records.SCHEMA:
            expected = getattr(example, feature.key)
            if expected is None:  # an optional one: zeros
                expected = [0] * len(example.token_ids)
            np.testing.assert_array_equal(row[feature.key], expected)
            assert row[feature.key].dtype == feature.dtype.as_numpy_dtype
            assert row[feature.key].ndim == len(feature.shape)


@pytest.mark.parametrize("highest", [100, 127, 128, 20_000, 2**21 - 1])
def test_many_are_serialized_as_one_is(highest):
    rng = np.random.default_rng(0)
    tokens = np.concatenate([rng.integers(0, highest + 1, 3000), [highest, 2, 3]]).astype("int32")
    cuts = np.sort(rng.integers(0, 3000, (40, 4)), -1) + np.array([[0, 1, 1, 2]])
    cuts[7:9, 2:] = 0  # a single text
    for continues in (None, tokens % 2):
        examples = Examples(
            tokens, continues, cuts, rng.integers(0, 2, 40), rng.integers(0, 300, (40, 2))
        )
        expected = [records.serialize(example) for example in examples]
        assert records.serialize_all(examples) == expected
        parsed = records.parse(tf.constant(expected[3]))["continues"]
        example = [*examples][3]
        np.testing.assert_array_equal(parsed, example.continues or [0] * len(example.token_ids))


def test_folder_holds_shards_vocabulary_and_manifest(folder):
    names = sorted(path.name for path in folder.iterdir())
    shards = [f"examples-0000{i}-of-00003.tfrecord" for i in range(3)]
    assert names == [*shards, "manifest.json", "vocab.txt"]
    manifest = records.read_manifest(folder)
    tokenizer = make_tokenizer()
    assert manifest["tokenizer"]["vocabulary_hash"] == tokenizer.vocabulary_hash
    assert manifest["tokenizer"]["special_ids"] == [0, 1, 2, 3, 4]
    again = WordPiece(folder / "vocab.txt", **manifest["tokenizer"]["config"])
    assert again.vocabulary == tokenizer.vocabulary


def test_unusable_folders(tmp_path):
    with pytest.raises(InputError, match="none isn't a folder"):
        records.read_manifest(tmp_path / "none")
    with pytest.raises(InputError, match=r"holds no manifest\.json"):
        records.read_manifest(tmp_path)

    folder = make_folder(tmp_path / "data")
    (folder / "examples-00001-of-00003.tfrecord").rename(tmp_path / "away")
    with pytest.raises(InputError, match="lacks examples-00001-of-00003"):
        records.read_manifest(folder)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    (folder / "manifest.json").write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(InputError, match="version 99 in place of 1"):
        records.read_manifest(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="isn't a manifest"):
        records.read_manifest(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(InputError, match="is unfinished"):
        records.read_manifest(folder)


def test_a_mismatch_is_named(folder):
    manifest = records.read_manifest(folder)
    tokenizer = make_tokenizer()
    records.check_manifest(
        manifest, folder, tokenizer=tokenizer, vocabulary_size=100, max_sequence_length=LENGTH
    )
    cased = WordPiece(tokenizer.vocabulary, lowercase=not tokenizer.get_config()["lowercase"])
    other = WordPiece([*tokenizer.vocabulary[:-1], "other"], **tokenizer.get_config())
    for setting, value, message in [
        ("tokenizer", cased, "lowercase is"),
        ("tokenizer", other, "the vocabulary is another one"),
        ("vocabulary_size", 99, "vocabulary_size is 100"),
        ("max_sequence_length", LENGTH - 1, f"max_sequence_length is {LENGTH}"),
    ]:
        with pytest.raises(InputError, match=f"{re.escape(str(folder))}.*{message}"):
            records.check_manifest(manifest, folder, **{setting: value})


def test_batches_for_training(folder):
    dataset = batches.pretraining(folder, 4, seed=1)
    inputs, labels, weights = dataset.element_spec
    for name in ("token_ids", "segment_ids", "padding_mask"):
        assert inputs[name] == tf.TensorSpec((4, LENGTH), tf.int32)
    assert inputs["mask_positions"] == labels["masked_lm"] == tf.TensorSpec((4, 2), tf.int32)
    assert weights["masked_lm"] == tf.TensorSpec((4, 2), tf.float32)
    assert labels["next_sentence"] == tf.TensorSpec((4,), tf.int32)
    assert weights["next_sentence"] == tf.TensorSpec((4,), tf.float32)

    # Each pass holds every example once, in another order; next_sentence stays with its row.
    epochs = as_list(dataset.take(23))
    originals = []
    for inputs, labels, weights in epochs:
        token_ids = inputs["token_ids"].copy()
        rows, slots = np.nonzero(weights["masked_lm"])
        token_ids[rows, inputs["mask_positions"][rows, slots]] = labels["masked_lm"][rows, slots]
        originals += [token_ids[i][inputs["padding_mask"][i] == 1].tolist() for i in range(4)]
        for original, label in zip(originals[-4:], labels["next_sentence"], strict=True):
            assert (original[1] - 5) % 2 == label
    passes = [originals[i : i + 23] for i in range(0, 92, 23)]
    examples = sorted(example.token_ids for example in make_examples(23))
    assert all(sorted(one_pass) == examples for one_pass in passes)
    assert passes[0] != passes[1] != passes[2]


def test_batches_are_functions_of_seed_and_number(folder):
    dataset = batches.pretraining(folder, 4, seed=1)
    first = as_list(dataset.take(20))
    tf.random.set_seed(9)
    assert_equal(as_list(batches.pretraining(folder, 4, seed=1).skip(13).take(7)), first[13:])
    assert_equal(as_list(dataset.take(20)), first)
    other = as_list(batches.pretraining(folder, 4, seed=2).take(20))
    assert any((a[0]["token_ids"] != b[0]["token_ids"]).any() for a, b in zip(first, other))


def test_batches_for_evaluation(folder):
    dataset = batches.pretraining(folder, 5, seed=1, training=False)
    first = as_list(dataset)
    assert len(dataset) == len(first) == 5
    assert [len(inputs["token_ids"]) for inputs, _, _ in first] == [5, 5, 5, 5, 3]
    assert_equal(as_list(dataset), first)
    # The masks don't depend on the batch size.
    (whole,) = as_list(batches.pretraining(folder, 23, seed=1, training=False))
    assert_equal(tf.nest.map_structure(lambda *parts: np.concatenate(parts), *first), whole)
    lengths = [len(row["token_ids"]) for row in as_list(records.read_examples(folder))]
    np.testing.assert_array_equal(whole[0]["padding_mask"].sum(-1), lengths)


def test_batch_larger_than_the_data(folder):
    (batch,) = as_list(batches.pretraining(folder, 30).take(1))
    assert batch[0]["token_ids"].shape[0] == 30


def test_no_examples(folder, tmp_path):
    with pytest.raises(InputError, match="holds no examples"):
        batches.pretraining(make_folder(tmp_path / "empty", 0, 1), 1, training=False)
    with pytest.raises(ValueError, match="`batch_size` must"):
        batches.pretraining(folder, 0)


def test_folders_may_be_remote_to_the_file_system():
    records.write_shards(make_examples(3), "ram://pretraining", 1)
    assert tf.io.gfile.listdir("ram://pretraining") == ["examples-00000-of-00001.tfrecord"]
