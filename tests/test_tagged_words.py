"""Tagged words: every format, every way to be refused, and batches in which nothing is lost."""

from __future__ import annotations

import dataclasses
import json

import keras
import numpy as np
import pytest
from test_cases import case  # noqa: F401 - a fixture

import keras_bert
from keras_bert import inference
from keras_bert.data.tagged_words import TaggedSentence, read_tagged_sentences, tagging
from keras_bert.errors import InputError
from keras_bert.windows import given_words

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS)]
LABELS = ("B-x", "I-x", "O")


@pytest.fixture
def write(tmp_path):
    def write(text, name="words.conll"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


@pytest.fixture(scope="module")
def tokenizer():
    return keras_bert.WordPiece(VOCABULARY)


@pytest.fixture(scope="module")
def preset(tokenizer):
    keras.utils.set_random_seed(0)
    config = keras_bert.BertConfig(
        vocabulary_size=len(VOCABULARY), num_layers=1, num_heads=2, hidden_dim=16,
        intermediate_dim=32, max_sequence_length=128, initializer_range=0.5,
    )  # fmt: skip
    encoder = keras_bert.bert(config)
    model = keras_bert.tasks.token_classifier(encoder, 3)
    settings = {"max_sequence_length": 64}
    return keras_bert.Preset(config, encoder, tokenizer, model, LABELS, settings)


def sentence(words, tags=None, line=1):
    words = words.split() if isinstance(words, str) else words
    return TaggedSentence(tuple(words), tuple(tags or ["O"] * len(words)), line)


# Files.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ann\tB-x\nsings\tO\n\n\nBob\tB-x\n", [("Ann sings", "B-x O", 1), ("Bob", "B-x", 5)]),
        ("\ufeffAnn B-x\r\nsings O\r\n\t\r\n# O\r\n", [("Ann sings", "B-x O", 1), ("#", "O", 4)]),
        # CoNLL-2003: a line of its own for a document, four columns.
        ("-DOCSTART- -X- -X- O\n\nAnn NNP I-NP I-PER\n", [("Ann", "I-PER", 3)]),
        ("x y\tO\n\u3000\tO\n\u2028\tB-x\n", [(["x y", "\u3000", "\u2028"], "O O B-x", 1)]),
        ("1\t中国\tB-LOC\t-\tann\n2\t的\tO\t-\t-\n", [("中国 的", "B-LOC O", 1)]),
        ('{"words": ["a b", ""], "tags": ["O", "O"]}\n\n{"tokens": ["c"], "ner_tags": ["B-x"]}',
         [(["a b", ""], "O O", 1), ("c", "B-x", 3)]),
    ],
)  # fmt: skip
def test_formats(write, text, expected):
    expected = [sentence(words, tags.split(), line) for words, tags, line in expected]
    assert read_tagged_sentences(write(text)) == expected


CONLLU = (
    "# sent_id = 1\n# text = du chat\n1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\tde\tde\tADP\tE\t_\t0\troot\t_\t_\n2\tle\tle\tDET\tD\t_\t1\tdet\t_\t_\n"
    "2.1\tgros\tgros\tADJ\tA\t_\t_\t_\t_\t_\n3\tchat\tchat\tNOUN\tN\t_\t1\tobl\t_\t_\n\n"
)


def test_conllu(write):
    assert read_tagged_sentences(write(CONLLU)) == [sentence("de le chat", ["ADP", "DET", "NOUN"],
                                                             4)]  # fmt: skip
    [row] = read_tagged_sentences(write(CONLLU), tag_column=5)
    assert row.tags == ("E", "D", "N")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Ann\tB-x\nsings\n", r"words.conll, line 2: expected 2 columns as above. .*'sings'"),
        ("Ann\nsings\n", r"line 1: expected a word and its tag. Received: 'Ann'"),
        ("Ann\tB-x\nsings\t\n", r"line 2: the tag is empty"),
        ("Ann\tB-x\n\tO\n", r"line 2: the word is empty"),
        ("Ann\tB-x\nhas\tVERB\n", r"line 2: the tag 'VERB' must have a prefix as 'B-x' of line 1"),
        ("\n \n", r"words.conll holds no words"),
        (b"Ann\tB-x\nBj\xf6rn\tO\n", r"line 2: not UTF-8"),
        (CONLLU.replace("3\tchat", "x\tchat"), r"line 7: the first column must number .*'x'"),
        (CONLLU.replace("\tobl\t_", "\tobl"), r"line 7: expected 10 columns"),
        ('{"words": ["a"], "tags": ["O"]}\n{', r"line 2: not JSON"),
        ('{"words": ["a"]}', r"line 1: expected an object with 'tags' or 'ner_tags'"),
        ('{"words": ["a"], "ner_tags": [3]}', r"line 1: ner_tags must be .*not their numbers"),
        ('{"words": ["a", "b"], "tags": ["O"]}', r"line 1: .* 2 words and 1 tags"),
        ('{"words": ["\\ud83d"], "tags": ["O"]}', r"line 1: words holds half of a surrogate"),
        ('{"words": [], "tags": []}', r"line 1: .* 0 words"),
        ('{"words": ["a"], "tags": [""]}', r"line 1: the tag of word 1 is empty"),
    ],
)
def test_refused(write, text, message):
    with pytest.raises(InputError, match=message):
        read_tagged_sentences(write(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ann\nsings\n\n\nBob\n", [("Ann sings", 1), ("Bob", 5)]),
        ("Ann\t_\nsings\t\n", [("Ann sings", 1)]),
        (CONLLU.replace("ADP", "_").replace("DET", "_").replace("NOUN", "_"), [("de le chat", 4)]),
        ('{"words": ["a", "b"]}\n{"tokens": ["c"]}', [("a b", 1), ("c", 2)]),
    ],
)
def test_without_tags(write, text, expected):
    found = read_tagged_sentences(write(text), needs_tags=False)
    assert found == [TaggedSentence(tuple(words.split()), (), line) for words, line in expected]


def test_all_words_have_tags_or_none(write):
    [row] = read_tagged_sentences(write("Ann\tB-x\nsings\tO\n"), needs_tags=False)
    assert row == sentence("Ann sings", ["B-x", "O"])
    for text, message in (
        ("Ann\tB-x\nsings\t\n", r"line 2: the word 'sings' has no tag"),
        ('{"words": ["a"], "tags": ["O"]}\n{"words": ["b"]}', r"line 2: the word 'b' has no tag"),
        ("Ann\nsings\tO\n", r"line 2: expected a word alone as above"),
    ):
        with pytest.raises(InputError, match=message):
            read_tagged_sentences(write(text), needs_tags=False)


def test_tag_column_must_be_one(write):
    for column in (1, 3, 0, -1):
        with pytest.raises(InputError, match=f"has 2 columns.* can't be in column {column}"):
            read_tagged_sentences(write("Ann\tB-x\n"), tag_column=column)


@pytest.mark.parametrize(
    ("name", "sentences", "words", "tags"),
    [
        ("wnut17_ner/train.conll", 3394, 62730, 13),
        ("wnut17_ner/dev.conll", 1009, 15733, 13),
        ("uner_zh_gsdsimp/train.iob2", 2500, 61870, 7),
        ("uner_en_ewt/dev.iob2", 2001, 25149, 7),
        ("ud_english_ewt_pos/dev.conllu", 2001, 25147, 17),  # without 359 ranges and 4 empty nodes
        ("ud_chinese_gsdsimp_pos/dev.conllu", 500, 12663, 16),
        ("snips_slots/dev.jsonl", 700, 6594, 69),
    ],
)
def test_real_files(shared, name, sentences, words, tags):
    found = read_tagged_sentences(shared(f"data/sequence_labelling/{name}"))
    assert len(found) == sentences
    assert sum(len(row.words) for row in found) == words
    assert len({tag for row in found for tag in row.tags}) == tags


# Batches.


def as_arrays(dataset):
    return [tuple({k: v.numpy() for k, v in part.items()} for part in batch) for batch in dataset]


def test_words_that_vanish(case, shared):  # noqa: F811
    """NER-01."""
    given, expected = case("NER-01")
    vocabulary = shared(f"data/vocab/{given['vocab']}/vocab.txt")
    tokenizer = keras_bert.WordPiece(vocabulary)
    labels = tuple(sorted({*given["labels"]}))
    row = sentence(given["words"], given["labels"])
    [(inputs, targets, weights)] = as_arrays(tagging([row], tokenizer, labels, 1, training=False))
    length = len(expected["ids"])
    assert inputs["token_ids"][0, :length].tolist() == expected["ids"]
    assert inputs["padding_mask"][0].tolist() == [1] * length + [0] * (32 - length)
    assert [tokenizer.vocabulary[i] for i in expected["ids"]] == expected["tokens"]
    shown = [labels[label] if weight else -100
             for label, weight in zip(targets["labels"][0], weights["labels"][0])]  # fmt: skip
    assert shown == [*expected["labels"], *[-100] * (32 - length)]
    words = given_words(tokenizer, given["words"])
    assert [i for i, first in enumerate(words.firsts) if first < 0] == expected["vanished"]

    config = keras_bert.BertConfig.of_size("tiny", vocabulary_size=tokenizer.vocabulary_size)
    encoder = keras_bert.bert(config)
    model = keras_bert.tasks.token_classifier(encoder, len(labels))
    preset = keras_bert.Preset(config, encoder, tokenizer, model, labels)
    tags = keras_bert.tag(preset, [given["words"]])[0].tags
    assert len(tags) == expected["predict_output_length"]
    assert {tags[i] for i in expected["vanished"]} == {expected["vanished_prediction"]}


def test_only_first_pieces_count(preset):
    """NER-02: no class of their own for later pieces, and no gradient to them."""
    row = sentence("ab c def", ["B-x", "I-x", "O"])
    [(inputs, targets, weights)] = as_arrays(tagging([row], preset.tokenizer, LABELS, 1))
    assert preset.model.output["labels"].shape[-1] == len(set(row.tags)) == 3
    first = [0, 1, 0, 1, 1, 0, 0, *[0] * 25]
    np.testing.assert_array_equal(weights["labels"][0], first)
    logits = preset.model.predict(inputs, verbose=0)["labels"]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = keras_bert.training.Model(x := keras.Input((None, 3)), {"labels": x})
    model.compile(loss=loss)
    before = model.evaluate(logits, targets, sample_weight=weights, verbose=0)
    logits[:, np.array(first) == 0] += 5 * np.eye(3)[0]
    assert model.evaluate(logits, targets, sample_weight=weights, verbose=0) == before


@pytest.mark.parametrize("layout", ["padded", "packed", "one_shape"])
def test_the_layout_doesnt_matter(preset, layout):
    """NER-06: the loss of a sentence doesn't depend on its padding, nor on its neighbours."""
    rng = np.random.default_rng(0)
    rows = [sentence(["".join(rng.choice(list(LETTERS), 3)) for _ in range(count)],
                     rng.choice(LABELS, count).tolist())
            for count in (1, 9, 4, 2, 15, 3, 40, 7)]  # fmt: skip
    model = preset.model
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    [padded] = as_arrays(tagging(rows, preset.tokenizer, LABELS, 20, max_sequence_length=64,
                                 training=False))  # fmt: skip
    longer = [
        {name: np.pad(values, ((0, 0), (0, 48))) for name, values in part.items()}
        for part in padded
    ]
    expected = model.evaluate(*longer[:2], sample_weight=longer[2], verbose=0)
    dataset = tagging(rows, preset.tokenizer, LABELS, 20, max_sequence_length=64, layout=layout)
    [(inputs, targets, weights)] = as_arrays(dataset)
    assert weights["labels"].sum() == sum(len(row.words) for row in rows) == 81
    loss = model.evaluate(inputs, targets, sample_weight=weights, verbose=0)
    assert loss == pytest.approx(expected, abs=1e-5)
    # One batch or several, and whatever the number of rows must be a multiple of.
    parts = tagging(rows, preset.tokenizer, LABELS, 6, max_sequence_length=64, layout=layout,
                    row_multiple=4)  # fmt: skip
    assert model.evaluate(parts, verbose=0) == pytest.approx(expected, abs=1e-5)
    assert {len(inputs["token_ids"]) % 4 for inputs, *_ in as_arrays(parts)} == {0}


def test_each_pass_has_its_own_order(tokenizer):
    rows = [sentence(letter) for letter in LETTERS]

    def passes(seed):
        dataset = tagging(rows, tokenizer, ("O",), 4, seed=seed)
        assert len(dataset) == 7
        return [[int(i) for inputs, *_ in as_arrays(dataset) for i in inputs["token_ids"][:, 1]]
                for _ in range(2)]  # fmt: skip

    first, second = passes(0)
    assert first != second and sorted(first) == sorted(second) == list(range(5, 31))
    assert passes(0) == [first, second] != passes(1)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_no_word_of_a_long_sentence_is_dropped(preset, layout):
    """641 words have 641 tags: each with weight in one window, and each one predicted."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list(LETTERS), rng.integers(1, 4))) for _ in range(641)]
    tags = rng.choice(LABELS, 641).tolist()
    dataset = tagging([sentence(words, tags)], preset.tokenizer, LABELS, 8, layout=layout,
                      max_sequence_length=64, training=False)  # fmt: skip
    counts = np.zeros(3)
    for inputs, targets, weights in as_arrays(dataset):
        assert inputs["token_ids"].shape[1] <= 64
        np.add.at(counts, targets["labels"], weights["labels"])
    assert counts.tolist() == [tags.count(label) for label in LABELS]
    result = keras_bert.tag(preset, [words])[0]
    assert len(result.tags) == 641 and result.words == tuple(words)


def test_training_and_predicting_agree(preset):
    """The logits that count in training are those that tags are chosen by."""
    words = [f"{a}{b}" for a in LETTERS for b in "xyz"]
    rows = [sentence(words), sentence([" ", "a", "\u200b"])]
    texts = [given_words(preset.tokenizer, row.words) for row in rows]
    found = inference.word_logits(preset, texts)
    assert [len(each) for each in found] == [78, 1]
    batches = tagging(rows, preset.tokenizer, LABELS, 2, max_sequence_length=64, training=False)
    trained = []
    for inputs, _, weights in as_arrays(batches):
        logits = preset.model.predict(inputs, verbose=0)["labels"]
        trained += logits[weights["labels"] > 0].tolist()
    np.testing.assert_allclose(trained, np.concatenate(found), atol=1e-5)


def test_tags_that_arent_the_models(tokenizer):
    row = sentence("a b", ["B-y", "O"], line=7)
    with pytest.raises(InputError, match=r"line 7: the tag 'B-y' isn't one of the model's \(B-x"):
        tagging([row], tokenizer, LABELS, 1)
    [(_, _, weights)] = as_arrays(tagging([row], tokenizer, LABELS, 1, training=False))
    assert weights["labels"].sum() == 1
    with pytest.raises(InputError, match="No sentence holds a word"):
        tagging([sentence(["\u200b"])], tokenizer, LABELS, 1)
    with pytest.raises(ValueError, match="`layout` must be one of padded"):
        tagging([sentence("a")], tokenizer, LABELS, 1, layout="dense")


def test_io_tags_go_in_and_come_out(preset, write):
    text = "".join(f"{word}\t{tag}\n" for word, tag in (("a", "x"), ("b", "O")))
    [row] = read_tagged_sentences(write(text))
    assert row.tags == ("x", "O")
    model = keras_bert.tasks.token_classifier(preset.encoder, 2)
    named = dataclasses.replace(preset, model=model, labels=("x", "O"))
    assert set(keras_bert.tag(named, [row.words])[0].tags) <= {"x", "O"}
    assert json.loads(json.dumps(row.words)) == ["a", "b"]
