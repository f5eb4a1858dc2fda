"""Batches of texts and pairs: what the model reads, and that next to nothing of it is padding."""

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras_bert
from keras_bert import long_texts
from keras_bert.data import fitting, texts
from keras_bert.data.pairs import multiple_choice, pairs
from keras_bert.data.tables import LabelledText, read_labelled_texts
from keras_bert.errors import InputError

WORDS = [f"w{i}" for i in range(100)]
TOKENIZER = keras_bert.WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
CLS, SEP = TOKENIZER.cls_id, TOKENIZER.sep_id


def words(count, start=0):
    return " ".join(WORDS[(start + i) % 100] for i in range(count))


@pytest.mark.parametrize(("count", "length"), [(5, 7), (6, 8), (7, 8), (20, 8)])
def test_a_text_at_the_limit(count, length):
    """CLS-05: [CLS], as many tokens as there's room for, [SEP]."""
    [sequence] = long_texts.encode_text(TOKENIZER, words(count), 8)
    kept = TOKENIZER(words(min(count, 6)))
    assert sequence.token_ids == [CLS, *kept, SEP]
    assert len(sequence.token_ids) == length


@pytest.mark.parametrize(
    ("first", "second", "room", "kept"),
    [(10, 7, 12, (6, 6)), (10, 7, 11, (6, 5)), (100, 3, 61, (58, 3)), (3, 100, 61, (3, 58)),
     (30, 30, 61, (30, 30)), (0, 70, 61, (0, 61)), (61, 0, 61, (61, 0)), (62, 62, 61, (31, 30))],
)  # fmt: skip
def test_pairs_are_cut_from_the_longer(first, second, room, kept):
    """PAIR-01: one token at a time, of the second where they're equal."""
    sequence = long_texts.encode_pair(TOKENIZER, words(first), words(second, 40), room + 3)
    ends = [i for i, token in enumerate(sequence.token_ids) if token == SEP]
    assert (ends[0] - 1, ends[1] - ends[0] - 1) == kept


def test_an_empty_side(shared):
    """PAIR-02: a pair has two [SEP] always."""
    tokenizer = keras_bert.WordPiece(shared("data/vocab/bert-base-uncased/vocab.txt"))
    expected = [
        ("the cat", "", [101, 1996, 4937, 102, 102], [0, 0, 0, 0, 1]),
        ("", "the cat", [101, 102, 1996, 4937, 102], [0, 0, 1, 1, 1]),
        ("", "", [101, 102, 102], [0, 0, 1]),
    ]
    for text, pair, ids, segments in expected:
        assert long_texts.encode_pair(tokenizer, text, pair, 8) == (ids, segments)


def shown(*arguments, **options):
    """The words' numbers in each sequence."""
    found = long_texts.encode_text(TOKENIZER, *arguments, **options)
    return [[token - 5 for token in sequence.token_ids[1:-1]] for sequence in found]


def test_long_texts():
    assert shown(words(20), 10) == [[*range(8)]]
    assert shown(words(20), 10, "tail") == [[*range(12, 20)]]
    assert shown(words(20), 10, "head+tail") == [[0, 1, *range(14, 20)]]
    assert shown(words(8), 10, "tail") == shown(words(8), 10, "head", 4) == [[*range(8)]]
    assert shown("", 10, "head", 4) == [[]]
    windows = shown(words(20), 10, "head", 5)
    assert [window[0] for window in windows] == [0, 5, 10, 12]
    assert [window[0] for window in shown(words(20), 10, "head", 50)] == [0, 8, 12]  # none skipped
    assert windows[-1] == [*range(12, 20)]
    with pytest.raises(ValueError, match="`truncate` must be one of"):
        shown("w0", 10, "middle")


@pytest.mark.parametrize("name", ["mr", "snli"])
def test_fill_of_real_texts(shared, name):
    """Batches of exactly 32: 95 % of the tokens are real, and 90 % where all have one shape."""
    tokenizer = keras_bert.WordPiece(shared("data/vocab/bert-base-uncased/vocab.txt"))
    if name == "mr":
        rows = read_labelled_texts(
            shared("data/text_classification/mr_sentence_polarity/train.tsv")
        )
    else:
        rows = read_labelled_texts(shared("data/benchmark/snli/train.tsv"), is_pair=True)
    examples = texts.make_examples(rows, tokenizer, sorted({row.label for row in rows}))
    lengths = np.array([len(each.token_ids) for each in examples.sequences])
    rng = np.random.default_rng(0)

    batches = fitting.uniform_order(len(lengths), 32, rng)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    shapes = [fitting.fitted_rows(lengths[batch], 128)[0] for batch in batches]
    assert lengths.sum() / sum(shape.num_rows * shape.row_length for shape in shapes) >= 0.95

    for replicas in (1, 8):
        shape = fitting.fixed_shape(lengths, 32, 128, replicas)
        batches, rows_of = zip(*fitting.even_batches(lengths, 32, shape, rng))
        assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
        assert {len(rows) for rows in rows_of} == {shape.num_rows}
        assert shape.num_rows % replicas == 0
        area = len(batches) * shape.num_rows * shape.row_length
        assert lengths.sum() / area >= 0.9


def test_even_batches_are_drawn_anew():
    lengths = np.random.default_rng(0).integers(3, 60, 330)
    rng = np.random.default_rng(1)
    first, second = (fitting.even_order(lengths, 32, rng) for _ in range(2))
    assert [len(batch) for batch in first] == [32] * 10 + [10]
    sums = [lengths[batch].sum() for batch in first[:-1]]
    assert max(sums) - min(sums) <= 10
    assert {*first[0].tolist()} != {*second[0].tolist()}
    few = fitting.fixed_shape(lengths[:3], 32, 64)
    [(batch, rows)] = fitting.even_batches(lengths[:3], 32, few, rng)
    assert sorted(batch) == [0, 1, 2]
    assert len(rows) == few.num_rows


def labelled(count=11):
    rng = np.random.default_rng(0)
    return [
        LabelledText("ab"[i % 2], words(int(rng.integers(1, 20)), i), i, words(i % 5) or None)
        for i in range(count)
    ]


@pytest.mark.parametrize("layout", ["packed", "one_shape"])
def test_layouts_hold_the_same_examples(layout):
    """Every sequence with its label and its weight, once an epoch, in a new order."""
    examples = texts.make_examples(labelled(), TOKENIZER, ["a", "b"], balanced=True)
    dataset = texts.batches(examples, 4, max_sequence_length=32, layout=layout, row_multiple=2)
    assert len(dataset) == 3
    orders, shapes = [], []
    for _ in range(2):
        found = []
        for inputs, labels, weights in dataset.as_numpy_iterator():
            shapes.append(inputs["token_ids"].shape)
            assert len(inputs["token_ids"]) % 2 == 0
            for row, slot in zip(*np.nonzero(inputs["sequence_starts"] >= 0)):
                mask = inputs["padding_mask"][row] == slot + 1
                found.append((inputs["token_ids"][row][mask].tolist(),
                              inputs["segment_ids"][row][mask].tolist(),
                              labels["label"][row, slot], weights["label"][row, slot]))  # fmt: skip
            assert np.all((weights["label"] > 0) == (inputs["sequence_starts"] >= 0))
        orders.append(found)
    everything = zip(examples.sequences, examples.labels, examples.weights)
    expected = [(*sequence, label, weight) for sequence, label, weight in everything]
    assert sorted(map(str, orders[0])) == sorted(map(str, expected))
    assert orders[0] != orders[1]
    assert sorted(map(str, orders[0])) == sorted(map(str, orders[1]))
    if layout == "one_shape":
        assert len(set(shapes)) == 1


def test_padded_batches():
    rows = labelled()
    batches = list(texts.classification(rows, TOKENIZER, ["a", "b"], 4, training=False))
    assert [tuple(inputs["token_ids"].shape) for inputs, _, _ in batches] == [
        (4, 32), (4, 32), (3, 32),
    ]  # fmt: skip
    assert np.concatenate([labels["label"] for _, labels, _ in batches]).tolist() == [0, 1] * 5 + [
        0
    ]
    with pytest.raises(InputError, match="line 1: the label 'b'"):
        texts.classification(rows, TOKENIZER, ["a", "c"], 4)
    with pytest.raises(ValueError, match="`rows` must have a `pair` each"):
        pairs(rows, TOKENIZER, ["a", "b"], 4)


def test_targets_of_each_kind():
    several = [LabelledText(("b",), "w1", 1), LabelledText(("a", "b"), "w2", 2)]
    examples = texts.make_examples(several, TOKENIZER, ["a", "b"])
    assert examples.labels.tolist() == [[0, 1], [1, 1]]
    for layout, shape in (("padded", (None, 2)), ("packed", (None, None, 2))):
        dataset = texts.batches(examples, 2, max_sequence_length=32, layout=layout)
        assert tuple(dataset.element_spec[1]["label"].shape) == shape
    numbers = [LabelledText(1.0, "w1", 1), LabelledText(5.0, "w2", 2)]
    examples = texts.make_examples(numbers, TOKENIZER, [], scale=(3.0, 2.0))
    assert examples.labels.tolist() == [[-1.0], [1.0]]
    windows = texts.make_examples(
        [LabelledText("b", words(20), 1)], TOKENIZER, ["a", "b"], max_sequence_length=10, stride=8
    )
    assert windows.labels.tolist() == [1, 1, 1]
    rare = [LabelledText("a", "w1", i) for i in range(3)] + [LabelledText("b", "w1", 3)]
    weights = texts.make_examples(rare, TOKENIZER, ["a", "b"], balanced=True).weights
    np.testing.assert_allclose(weights, [2 / 3, 2 / 3, 2 / 3, 2])


def test_packed_and_padded_give_the_same_update():
    """The loss and the gradient of a batch, without dropout."""
    config = keras_bert.BertConfig(
        vocabulary_size=105, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16,
        max_sequence_length=32, dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    examples = texts.make_examples(labelled(), TOKENIZER, ["a", "b"], balanced=True)
    encoder = keras_bert.bert(config)
    packed = keras_bert.tasks.text_classifier(encoder, 2, dropout=0.0, packed=True)
    plain = keras_bert.tasks.unpacked(packed, encoder)
    losses = []
    for model, layout in ((packed, "packed"), (plain, "padded")):
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        dataset = texts.batches(examples, 11, max_sequence_length=32, layout=layout, training=False)
        losses.append(model.evaluate(dataset, verbose=0))
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_choices_are_batches():
    rows = [LabelledText(str(i % 3), words(i), i, (words(1), words(2), words(3))) for i in range(5)]
    dataset = multiple_choice(rows, TOKENIZER, 2, max_sequence_length=32)
    sizes = [tuple(inputs["token_ids"].shape) for inputs, _, _ in dataset]
    assert sizes == [(2, 3, 32), (2, 3, 32), (1, 3, 32)]
    fixed = list(multiple_choice(rows, TOKENIZER, 2, max_sequence_length=16, layout="fixed"))
    assert {tuple(inputs["token_ids"].shape) for inputs, _, _ in fixed} == {(2, 3, 16)}
    even = multiple_choice(rows, TOKENIZER, 3, max_sequence_length=32, row_multiple=2)
    assert [len(inputs["token_ids"]) for inputs, _, _ in even] == [4, 2]
    assert sum(float(np.sum(weights["label"])) for _, _, weights in fixed) == 5


def test_unknown_layout():
    examples = texts.make_examples(labelled(), TOKENIZER, ["a", "b"])
    with pytest.raises(ValueError, match="`layout` must be one of padded, packed, one_shape"):
        texts.batches(examples, 4, max_sequence_length=32, layout="dense")
