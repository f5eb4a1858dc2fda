"""Where the pieces stand in their strings: the graph form against the Python form."""

from __future__ import annotations

import gzip
import json
import random
import unicodedata

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.tokenizers import SPECIAL_TOKENS, WordPiece
from keras_bert.unicode_table import WordSplitter, load_table
from keras_bert.windows import given_words, text_words

LOWERCASE = {
    "bert-base-uncased": True,
    "bert-base-chinese": True,
    "bert-base-cased": False,
    "bert-base-multilingual-cased": False,
}
# Arguments of a tokenizer: lowercase, strip_accents, split_cjk.
MODES = [
    (True, None, True),
    (False, None, True),
    (True, False, True),
    (False, True, False),
]

HARD = [
    "",
    " \t\n",
    "Hello, worlds!",
    "  two  spaces  ",
    "Cafe\u0301 CAFÉ café, naïve",
    # Marks out of their canonical order, of classes that stripping leaves and those it doesn't.
    "q\u0323\u0307 q\u0307\u0323 a\u0301\u0328b \u0301\u0301 x\u0301",
    "\u0344\u0f73\u0f75 \u1d15e\U0001d15e\U0001d163 \U0001d157\U0001d16e\U0001d165x",
    "a\U0001d16e\U0001d165b a\U0001d165\u0301\U0001d16e\u0323c \u302f\u302ea",
    "a\U0001d16d\u0345\U0001d165b \u093c\U0001d16d\u0cc6\U0001d165",
    "ΟΔΟΣ ΟΔΟΣ. Σ ΣΑΣ ΑΣ\u00adΑ Α\u0301Σ\u0301 Σ'Α ΑΣ:",
    "İstanbul İİ ISTANBUL ıI ẞß",
    "中文abc中文, 汉字か가 㐀𠀀豈\u2f800\U0002f800",
    "👩\u200d👩\u200d👧\u200d👦 👍🏽 🇩🇪 ❤\ufe0f",
    "a\u0000b\u0001c\u001fd\u007fe\u0085f\u009fg\ufffdh\ufeffi",
    "a\u2028b\u2029c\u000bd\u000ce\u001cf\u00a0g\u3000h\u1680i",
    "\u200b\u200dzero\u200bwidth\u2060\u00adsoft\u200e \u200b \u2060",
    "ﬁn ﬀ ﬃx ŉa ǰ ΐ և ẖẗẘẙẚ ᾳ ᾲ ﷺ ㎃ Ⅷ",
    "각 한국어 학교\u1100\u1161\u11a8 ꀀ",
    "क़ ख़\u0929 ড় ਖ਼ שּׁ אּ\u05b0",
    "a" * 200 + " " + "a" * 201 + " " + "É" * 201 + "b",
    "ﬃ" * 67 + " " + "ﬃ" * 66 + "a, " + "가" * 100,
    "\ue000\U0010ffff\U000e0001\u0378unknown\u0378 ☃ x☃",
    "##s ## a##b [MASK] [UNK] '##'",
    "'tis don't 3.14 $1,000 e-mail@x.org—yes…",
    "\ufeffbyte order mark",
]
BROKEN = [
    b"caf\xe9 ok \xff na\xc3\xafve",
    b"\xed\xa0\x80a \xed\xa0\xbd\xed\xb8\x80b",  # surrogates
    b"\xc0\x80a \xe0\x80\x80b \xf0\x80\x80\x80c \xc1\xbfd",  # overlong
    b"\xf4\x90\x80\x80a \xf8\x88\x80\x80\x80b \xfe\xff c",  # beyond U+10FFFF
    b"a\xe2\x82 b\xf0\x9f\x98c \xf0\x9f d\xe4\xb8",  # truncated
    b"\xe2\xe4\xb8\xad\xf0\x9f\xe4\xb8\xad \x80\xbf\xc3(",
    b"\xff",
]


def random_texts(count, seed):
    """Strings of up to 40 random code points, most of which the tables have something about."""
    rng = random.Random(seed)
    table = load_table()
    pools = [
        sorted({*table.lower, *table.stripped}),
        [*table.combining_class, 0x0301, 0x0323, 0x0345, 0x093C, 0x0CC6],
        [code for code, letters in table.stripped.items() if not letters],
        [ord(letter) for letter in "ΣσςΑα'.:\u00ad\u200b\u0301a "],
        [*range(0xAC00, 0xD7A4, 7), *range(0x1100, 0x1200)],
        [*range(0xF900, 0xFB07), *range(0x2F800, 0x2F900), *range(0x4E00, 0x4E80)],
        list(range(0x20, 0x250)),
        [code for code in range(0x110000) if not 0xD800 <= code < 0xE000],
    ]
    texts = []
    for _ in range(count):
        chosen = rng.choices(pools, k=3)
        codes = [rng.choice(rng.choice(chosen)) for _ in range(rng.randrange(40))]
        texts.append("".join(map(chr, codes)))
    return texts


def vocabulary_of(texts, *mode):
    """One that knows nearly every letter of the texts, so that an [UNK] hides nothing."""
    splitter = WordSplitter(*mode)
    words = sorted({word for text in texts for word in splitter.words(text)})
    letters = {letter for word in words for letter in word} - {"☃"}
    longer = {word[:k] for word in words[::2] for k in (2, 3)}
    later = {f"##{word[1:k]}" for word in words[::2] if len(word) > 1 for k in (2, 4)}
    tokens = letters | longer | later | {f"##{letter}" for letter in letters}
    return [*SPECIAL_TOKENS, *sorted(tokens - {"##"}), "##"]


def encoded(texts):
    return [text if isinstance(text, bytes) else text.encode() for text in texts]


def decoded(text):
    return text.decode(errors="ignore") if isinstance(text, bytes) else text


def check_places(tokenizer, texts):
    """Ids, offsets and words are those of the Python form."""
    places = tokenizer.places_tf(tf.constant(encoded(texts), tf.string))
    for part in places:
        assert part.dtype == tf.int32
        assert part.row_splits.dtype == tf.int64
    later = tokenizer.is_later
    ids, starts, ends = (part.to_list() for part in places)
    assert len(ids) == len(starts) == len(ends) == len(texts)
    for text, *row in zip(texts, ids, starts, ends, strict=True):
        encoding = tokenizer.encode(text)
        assert row[0] == encoding.token_ids[1:-1], ascii(text)
        spans = list(zip(row[1], row[2], strict=True))
        assert spans == encoding.offsets[1:-1], ascii(text)

        words = text_words(tokenizer, decoded(text))
        firsts = np.flatnonzero(~later[row[0]]).tolist()
        stops = [*firsts[1:], len(spans)]
        assert firsts == words.firsts, ascii(text)
        assert tuple(row[1][first] for first in firsts) == words.starts
        lasts = [stop - 1 for stop in stops] if firsts else []
        assert tuple(row[2][last] for last in lasts) == words.ends


@pytest.mark.parametrize("mode", MODES)
def test_hard_texts(mode):
    texts = [*HARD, *(unicodedata.normalize("NFD", text) for text in HARD)]
    tokenizer = WordPiece(vocabulary_of(texts, *mode), *mode)
    check_places(tokenizer, [*texts, *BROKEN])
    for text in texts:
        check_places(tokenizer, [text])


@pytest.mark.parametrize("mode", MODES)
def test_random_texts(mode):
    texts = random_texts(800, seed=MODES.index(mode))
    check_places(WordPiece(vocabulary_of(texts, *mode), *mode), texts)


def test_random_bytes():
    rng = random.Random(1)
    mode = MODES[0]
    texts = random_texts(400, seed=4)
    tokenizer = WordPiece(vocabulary_of(texts, *mode), *mode)
    leads = (
        b"aZ \x00\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xe2\xed\xef\xf0\xf1\xf4\xf5\xff"
    )
    rows = [bytes(rng.choices(leads, k=rng.randrange(24))) for _ in range(1500)]
    for text in texts:
        row = bytearray(text.encode())
        at = rng.randrange(len(row) + 1)
        row[at : at + rng.randrange(3)] = bytes(rng.choices(leads, k=rng.randrange(4)))
        rows.append(bytes(row))
    check_places(tokenizer, rows)


def real_texts(shared):
    """The golden texts, and the lines of files that have broken programs before."""
    with gzip.open(shared("golden/tokenizer/golden_tokenizer_public.jsonl.gz")) as file:
        texts = [json.loads(line)["text"] for line in file]
    texts += json.loads(shared("data/robustness/blns.json").read_bytes())
    for name in ("NormalizationTest.subset.txt", "emoji-sequences.txt", "udhr_20_languages.tsv"):
        lines = shared(f"data/robustness/{name}").read_text(encoding="utf-8").split("\n")
        texts += lines[:: max(1, len(lines) // 250)]
    return texts


@pytest.mark.parametrize("name", LOWERCASE)
def test_real_texts(shared, name):
    tokenizer = WordPiece(shared(f"data/vocab/{name}/vocab.txt"), LOWERCASE[name])
    check_places(tokenizer, real_texts(shared))


def test_given_words():
    """Each row is a word; a row without a piece is a word that has none."""
    words = ["Don't", "", "\u200b", "é", "\u0301", "中文", "a☃", "worlds", "x" * 201]
    tokenizer = WordPiece(vocabulary_of(words))
    given = given_words(tokenizer, words)
    places = tokenizer.places_tf(tf.constant(words))
    assert places.ids.flat_values.numpy().tolist() == given.ids
    lengths, firsts = places.ids.row_lengths().numpy(), places.ids.row_starts().numpy()
    assert np.where(lengths > 0, firsts, -1).tolist() == given.firsts
    check_places(tokenizer, words)


def test_which_tokens_go_on_with_a_word():
    tokenizer = WordPiece([*SPECIAL_TOKENS, "a", "##a", "##", "#", "###", "", "a##"])
    assert tokenizer.is_later.dtype == bool
    assert tokenizer.is_later.tolist() == [False] * 6 + [True, False, False, True, False, False]


def test_empty_batches():
    tokenizer = WordPiece([*SPECIAL_TOKENS, "a"])
    for texts, rows in (([], []), ([""], [[]]), (["", " ", "\u200b"], [[], [], []])):
        places = tokenizer.places_tf(tf.constant(texts, tf.string))
        assert [part.to_list() for part in places] == [rows] * 3


def test_pieces_that_share_a_character():
    def spans(text, *pieces, strip_accents):
        tokenizer = WordPiece([*SPECIAL_TOKENS, *pieces], strip_accents=strip_accents)
        places = tokenizer.places_tf(tf.constant([text]))
        assert places.ids.to_list() == [[*range(5, 5 + len(pieces))]]
        return list(zip(places.starts.to_list()[0], places.ends.to_list()[0], strict=True))

    # NFD makes letters of two Hangul syllables, lower-casing makes two of a dotted I.
    hangul = "\u1112", "##\u1161", "##\u11ab\u1100", "##\u116e\u11a8"
    assert spans("\ud55c\uad6d", *hangul, strip_accents=True) == [(0, 1), (0, 1), (0, 2), (1, 2)]
    dotted = "ai", "##\u0307b"
    assert spans("aİb", *dotted, strip_accents=False) == [(0, 2), (1, 3)]


def test_marks_out_of_order_keep_their_places():
    """As in the Python form, the first letter of a run is that of its first mark."""
    # Combining classes 226 and 216: normalising exchanges them.
    text = "a\U0001d16d\U0001d165"
    tokenizer = WordPiece([*SPECIAL_TOKENS, "a", "##\U0001d165", "##\U0001d16d"])
    places = tokenizer.places_tf(tf.constant([text]))
    assert [part.to_list()[0] for part in places] == [[5, 6, 7], [0, 1, 2], [1, 2, 3]]
    check_places(tokenizer, [text])


def test_core_ops_only():
    tokenizer = WordPiece([*SPECIAL_TOKENS, "a", "##b"])
    graph = tf.function(tokenizer.places_tf).get_concrete_function(tf.TensorSpec([None], tf.string))
    definition = graph.graph.as_graph_def()
    ops = {node.op for node in definition.node}
    ops |= {node.op for f in definition.library.function for node in f.node_def}
    assert "UnicodeDecode" in ops
    assert not [op for op in ops if ">" in op or "Text" in op or "Wordpiece" in op or "Py" in op]
    places = graph(tf.constant(["ab a", "é"]))
    assert [part.to_list() for part in places] == [
        [[5, 6, 5], [1]],
        [[0, 1, 3], [0]],
        [[1, 2, 4], [1]],
    ]
