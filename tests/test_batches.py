"""From records to the batches of training: masked in three ways, packed, and Google's own."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.data import batches, records
from keras_bert.data.examples import Example
from keras_bert.data.masking import num_masked
from keras_bert.errors import InputError
from keras_bert.tokenizers import WordPiece

LENGTH = 16
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, *(f"w{i}" for i in range(65)), *(f"##{i}" for i in range(30))]  # from 70 on
CHINESE = [*SPECIAL, *map(chr, range(0x4E00, 0x4E00 + 95))]


def make_examples(count, words=None):
    rng = np.random.default_rng(0)
    examples = []
    for i in range(count):
        a, b = (rng.integers(5, 100, rng.integers(1, 7)).tolist() for _ in "ab")
        token_ids, segment_ids = [2, *a, 3, *b, 3], [0] * (len(a) + 2) + [1] * (len(b) + 1)
        continues = None if words is None else [int(j % 3 == 2) for j in range(len(token_ids))]
        examples.append(Example(token_ids, segment_ids, i % 2, (0, 0), continues))
    return examples


def make_folder(folder, count=50, vocabulary=WORDS, words=None, **settings):
    shards = records.write_shards(make_examples(count, words), folder, 3)
    records.write_manifest(
        folder,
        settings={"max_sequence_length": LENGTH, **settings},
        tokenizer=WordPiece(vocabulary),
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


def examples_of(dataset):
    """What each example of a data set is, whatever its row: originals, masks and labels."""
    found = []
    for inputs, labels, weights in as_list(dataset):
        original = inputs["token_ids"].copy()
        rows, slots = np.nonzero(weights["masked_lm"])
        original[rows, inputs["mask_positions"][rows, slots]] = labels["masked_lm"][rows, slots]
        asked = np.zeros(original.shape, bool)
        asked[rows, inputs["mask_positions"][rows, slots]] = True
        for i, mask in enumerate(inputs["padding_mask"]):
            for k in range(1, mask.max(initial=0) + 1):
                here = mask == k
                next_sentence = labels["next_sentence"][i], weights["next_sentence"][i]
                if "sequence_starts" in inputs:
                    assert inputs["sequence_starts"][i, k - 1] == np.argmax(here)
                    next_sentence = tuple(part[k - 1] for part in next_sentence)
                parts = original[i], inputs["token_ids"][i], inputs["segment_ids"][i], asked[i]
                found.append((*(tuple(part[here].tolist()) for part in parts), *next_sentence))
    return found


@pytest.mark.parametrize("masking", ["whole_word", "span"])
def test_masking_of_records(folder, masking):
    dataset = batches.pretraining(folder, 5, seed=1, masking=masking)
    inputs, _, weights = dataset.element_spec
    assert inputs["mask_positions"] == tf.TensorSpec((5, 2), tf.int32)
    assert weights["masked_lm"] == tf.TensorSpec((5, 2), tf.float32)
    first = as_list(dataset.take(20))
    again = as_list(batches.pretraining(folder, 5, seed=1, masking=masking).skip(13).take(7))
    assert_equal(again, first[13:])
    found = examples_of(dataset.take(20))
    for original, _, _, asked, _, _ in found:
        if masking == "whole_word":
            assert sum(asked) <= num_masked(len(original))
            for i, token_id in enumerate(original[:-1]):
                if original[i + 1] >= 70:  # a word and what continues it
                    assert asked[i] == asked[i + 1]
                assert not (asked[i] and token_id < 5)
        elif any(5 <= token_id < 70 for token_id in original):
            assert sum(asked) <= num_masked(len(original))
    assert any(sum(asked) for _, _, _, asked, _, _ in found)


def test_every_pass_has_masks_of_its_own(folder):  # MLM-10
    one, two = (
        sorted(examples_of(batches.pretraining(folder, 5, seed=1).skip(n).take(10)))
        for n in (0, 10)
    )
    assert [example[0] for example in one] == [example[0] for example in two]
    assert sum(a[3] != b[3] for a, b in zip(one, two, strict=True)) > 40


@pytest.mark.parametrize(
    ("batch_size", "starts"),  # a pass has 50 examples
    [(5, (3, 10, 24)), (7, (7, 8)), (120, (1, 5))],
)
def test_a_later_start_makes_the_same_batches(folder, batch_size, starts):
    read = functools.partial(batches.pretraining, folder, batch_size, seed=1)
    whole = as_list(read().take(starts[-1] + 2))
    for start in starts:
        late = read(start=start)
        assert late.element_spec == read().element_spec
        assert int(late.cardinality()) == tf.data.INFINITE_CARDINALITY
        assert_equal(as_list(late.take(2)), whole[start : start + 2])


def test_a_later_start_in_other_data(folder):
    read = functools.partial(batches.pretraining, folder, 7, training=False)
    assert_equal(as_list(read(start=6)), as_list(read().skip(6)))
    assert int(read(start=6).cardinality()) == 2
    with pytest.raises(ValueError, match=r"`start` must be at least 0\. Received: start=-1"):
        batches.pretraining(folder, 2, start=-1)


@pytest.mark.parametrize("row_length", [16, 40])
def test_packed_batches(folder, row_length):
    dataset = batches.pretraining(folder, 4, seed=1, row_length=row_length)
    inputs, labels, weights = dataset.element_spec
    slots = batches.num_slots(LENGTH, row_length)
    positions = batches.num_packed_positions(row_length)
    for name in ("token_ids", "segment_ids", "padding_mask"):
        assert inputs[name] == tf.TensorSpec((4, row_length), tf.int32)
    assert (
        inputs["sequence_starts"] == labels["next_sentence"] == tf.TensorSpec((4, slots), tf.int32)
    )
    assert (
        inputs["mask_positions"] == labels["masked_lm"] == tf.TensorSpec((4, positions), tf.int32)
    )
    assert weights["masked_lm"] == tf.TensorSpec((4, positions), tf.float32)
    assert weights["next_sentence"] == tf.TensorSpec((4, slots), tf.float32)

    first = as_list(dataset.take(40))
    tf.random.set_seed(9)
    late = batches.pretraining(folder, 4, seed=1, row_length=row_length, start=33)
    assert_equal(as_list(late.take(7)), first[33:])
    fill = np.mean([np.mean(inputs["padding_mask"] > 0) for inputs, _, _ in first])
    assert fill > (0.9 if row_length == 40 else 0.7)  # 0.6 one a row, of lengths 5 to 15
    known = {tuple(example.token_ids) for example in make_examples(50)}
    for original, _, _, asked, _, weight in examples_of(dataset.take(10)):
        assert original in known and weight == 1
        assert sum(asked) == num_masked(len(original))


def test_packed_evaluation_holds_the_examples_of_the_unpacked_one(folder):
    plain = batches.pretraining(folder, 7, seed=1, training=False)
    packed = batches.pretraining(folder, 7, seed=1, training=False, row_length=40)
    found = examples_of(packed)
    assert sorted(found) == sorted(examples_of(plain))
    assert len(found) == 50
    assert_equal(as_list(packed), as_list(packed))


def test_rows_must_hold_the_longest_example(folder):
    with pytest.raises(InputError, match="up to 16 tokens, and row_length is 15"):
        batches.pretraining(folder, 2, row_length=15)


def test_full_sentences_are_no_pairs(tmp_path):
    folder = make_folder(tmp_path / "data", pairs="full_sentences")
    for row_length in (None, 40):
        for _, _, weights in as_list(batches.pretraining(folder, 4, row_length=row_length).take(3)):
            assert not weights["next_sentence"].any() and weights["masked_lm"].any()


def test_chinese_needs_word_boundaries(tmp_path):  # MLM-05
    without = make_folder(tmp_path / "without", vocabulary=CHINESE)
    with pytest.warns(UserWarning, match="holds Chinese text without word boundaries"):
        batches.pretraining(without, 2, masking="whole_word")
    segmented = make_folder(tmp_path / "words", vocabulary=CHINESE, words=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches.pretraining(without, 2, masking="span")
        found = examples_of(batches.pretraining(segmented, 5, masking="whole_word").take(20))
    together = 0
    for original, _, _, asked, _, _ in found:
        for i in range(2, len(original), 3):  # continues the word of i - 1
            if original[i] >= 5 and original[i - 1] >= 5:
                assert asked[i] == asked[i - 1]
                together += asked[i]
    assert together > 20


def test_wrong_choices(folder):
    with pytest.raises(ValueError, match="`masking` must be one of token, whole_word, span"):
        batches.pretraining(folder, 2, masking="words")


def test_a_filled_batch_counts_as_before(folder):
    """The last one of an evaluation gets rows of weight 0: one shape for all."""
    dev = batches.pretraining(folder, 32, training=False)
    filled = batches.filled(dev, 32)
    assert all(spec.shape[0] == 32 for spec in tf.nest.flatten(filled.element_spec))
    assert int(filled.cardinality()) == 2
    short, full = as_list(dev)[-1], as_list(filled)[-1]
    assert len(short[1]["next_sentence"]) == 18
    assert_equal(tf.nest.map_structure(lambda x: x[:18], full), short)
    assert not any(x[18:].any() for x in tf.nest.flatten(full))

    packed = batches.pretraining(folder, 32, training=False, row_length=40)
    num_rows = len(as_list(packed)[-1][0]["token_ids"])
    inputs, _, weights = as_list(batches.filled(packed, 32))[-1]
    assert num_rows < 32 and (inputs["sequence_starts"][num_rows:] == -1).all()
    assert not any(x[num_rows:].any() for x in weights.values())
