"""WordPiece in its three forms: the ids of the original code."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import pickle
import random
import time
import unicodedata

import pytest
import tensorflow as tf

import keras_bert.tokenizers
from keras_bert.errors import InputError
from keras_bert.tokenizers import SPECIAL_TOKENS, WordPiece
from keras_bert.unicode_table import CJK, UNICODE_VERSION, WordSplitter, load_table

SMALL = [
    *SPECIAL_TOKENS,
    "hello", "world", "##s", "good", "un", "##aff", "##able", ",", "[", "]", "mask", "sep",
    "中", "文", "σ", "ς", "##ς", "##σ", "ο", "##δ", "##ο", "a", "##a", "cafe", "e", "##́",
]  # fmt: skip


@pytest.fixture(scope="module")
def small():
    return WordPiece(SMALL)


def graph_ids(tokenizer, texts, **options):
    """The ids of the two graphs, which must agree."""
    rows = [text if isinstance(text, bytes) else text.encode() for text in texts]
    strings = tf.constant(rows, tf.string)
    ids = tokenizer.to_tf(strings, **options)
    core = tokenizer.to_tf(strings, core_ops=True, **options)
    assert ids.dtype == core.dtype == tf.int32
    assert ids.row_splits.dtype == core.row_splits.dtype == tf.int64
    assert ids.to_list() == core.to_list()
    return core.to_list()


# The algorithm of the original code, written plainly on top of `unicodedata`.


def plain_words(text, lowercase, strip_accents, split_cjk=True):
    cleaned = ""
    for char in text:
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            cleaned += " "
        elif char not in "\0\ufffd" and category not in ("Cc", "Cf"):
            is_ideograph = (
                0x3400 <= ord(char) <= 0x4DBF
                or 0x4E00 <= ord(char) <= 0x9FFF
                or 0xF900 <= ord(char) <= 0xFAFF
                or 0x20000 <= ord(char) <= 0x2A6DF
                or 0x2A700 <= ord(char) <= 0x2CEAF
                or 0x2F800 <= ord(char) <= 0x2FA1F
            )
            cleaned += f" {char} " if split_cjk and is_ideograph else char
    words = []
    for word in cleaned.split():
        word = word.lower() if lowercase else word
        if strip_accents:
            decomposed = unicodedata.normalize("NFD", word)
            word = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
        spaced = ""
        for char in word:
            is_symbol = char.isascii() and not char.isalnum()
            is_punctuation = is_symbol or unicodedata.category(char).startswith("P")
            spaced += f" {char} " if is_punctuation else char
        words += spaced.split()
    return words


def plain_pieces(word, vocabulary):
    if len(word) > 200:
        return ["[UNK]"]
    pieces = []
    while word:
        prefix = "##" if pieces else ""
        ends = (e for e in range(len(word), 0, -1) if prefix + word[:e] in vocabulary)
        end = next(ends, None)
        if end is None:
            return ["[UNK]"]
        pieces.append(prefix + word[:end])
        word = word[end:]
    return pieces


def random_texts(count, seed):
    rng = random.Random(seed)
    table = load_table()
    pools = [
        [*map(chr, table.combining_class), "\u0301", "\u0323", "\u0345", "\u093c", "\u0cc6"],
        list("ΣσςΑα'.·:\u00ad\u0301’ʼa "),
        [chr(code) for code in range(0xAC00, 0xD7A4, 7)],
        [chr(code) for code in range(0x1100, 0x1200)],
        [chr(code) for code in range(0xF900, 0xFB00)],
        list("abcdefgh ,.-'ABC\t\x85\u2028\u3000"),
        [chr(code) for code in range(0x80, 0x250)],
        [chr(code) for code in range(0x1F00, 0x2000)],
        [chr(code) for code in range(0x1D150, 0x1D180)],
        [chr(code) for code in table.lower],
    ]

    def any_char():
        code = rng.randrange(0x110000) if rng.random() < 0.4 else rng.randrange(0x3000)
        return " " if 0xD800 <= code < 0xE000 else chr(code)

    texts = []
    for _ in range(count):
        chosen = rng.sample(pools, 3)
        length = rng.randrange(40)
        texts.append(
            "".join(
                any_char() if rng.random() < 0.15 else rng.choice(rng.choice(chosen))
                for _ in range(length)
            )
        )
    return texts


@functools.cache
def random_vocabulary():
    """One that knows nearly every letter of the random texts, so that an [UNK] hides nothing."""
    splitters = WordSplitter(True), WordSplitter(False)
    texts = random_texts(3000, seed=0)
    words = {word for text in texts for splitter in splitters for word in splitter.words(text)}
    letters = {letter for word in words for letter in word}
    longer = {word[:k] for word in words for k in (2, 3, 5) if len(word) >= k}
    later = {f"##{word[1:k]}" for word in words for k in (2, 3, 4) if len(word) >= k}
    tokens = letters | longer | later | {f"##{letter}" for letter in letters}
    return [*SPECIAL_TOKENS, *sorted(tokens)]


@pytest.mark.parametrize(
    ("lowercase", "strip_accents", "split_cjk", "digest"),
    [
        (True, None, True, "39463930b1d8c31f"),
        (False, None, True, "74bbc095f78df36c"),
        (True, False, True, "76d117166c0171a6"),
        (False, True, False, "45cbc3e2daf5d63a"),
    ],
)
def test_random_texts(lowercase, strip_accents, split_cjk, digest):
    tokenizer = WordPiece(random_vocabulary(), lowercase, strip_accents, split_cjk)
    texts = random_texts(3000, seed=0)
    ids = tokenizer(texts)
    assert graph_ids(tokenizer, texts) == ids
    # The same whatever Unicode this Python knows.
    assert hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16] == digest
    if unicodedata.unidata_version == UNICODE_VERSION:
        known = set(tokenizer.vocabulary)
        stripped = tokenizer.strip_accents
        for text, row in zip(texts, ids, strict=True):
            words = plain_words(text, lowercase, stripped, split_cjk)
            expected = [piece for word in words for piece in plain_pieces(word, known)]
            assert [tokenizer.vocabulary[i] for i in row] == expected, ascii(text)
    for text in texts[:1000]:
        encoding = tokenizer.encode(text)
        assert encoding.token_ids[1:-1] == tokenizer(text)
        spans = encoding.offsets[1:-1]
        assert all(0 <= start < end <= len(text) for start, end in spans)
        assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in itertools.pairwise(spans))


def test_random_bytes():
    rng = random.Random(1)
    broken = [b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe9", b"\xe2\x82", b"\xff"]
    texts = []
    for text in random_texts(1500, seed=2):
        row = bytearray(text.encode())
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(row) + 1)
            row[at : at + rng.randrange(2)] = rng.choice(broken)
        texts.append(bytes(row))
    tokenizer = WordPiece(random_vocabulary())
    assert graph_ids(tokenizer, texts) == tokenizer(texts)


def test_every_code_point_splits_as_unicode_14_says():
    if unicodedata.unidata_version != UNICODE_VERSION:
        pytest.skip(f"needs a Python of Unicode {UNICODE_VERSION}")
    for mode in ((True, True), (False, False)):
        splitter = WordSplitter(*mode)
        for code in range(0, 0x30000, 5):
            text = f"a{chr(code)}b"
            assert splitter.words(text) == plain_words(text, *mode), hex(code)


@pytest.mark.parametrize(("lowercase", "special_tokens"), [(True, False), (False, True)])
def test_every_pair_of_ascii(lowercase, special_tokens):
    """TF-Text splits and lower-cases ASCII by itself: as the frozen table does."""
    ascii_chars = [chr(code) for code in range(128)]
    # A token is a line of a file: it holds no end of one.
    letters = [letter for letter in ascii_chars if letter not in "\n\r"]
    tokens = sorted({*letters, *(f"##{c}" for c in letters), "##", "a.", "##.a", "a b"})
    tokenizer = WordPiece([*SPECIAL_TOKENS, *tokens, "[a]"], lowercase)
    texts = [f"a{first}{second}B" for first in ascii_chars for second in ascii_chars]
    ids = tokenizer(texts, special_tokens)
    assert graph_ids(tokenizer, texts, special_tokens=special_tokens) == ids


def test_whether_a_letter_stands_alone_is_told_by_the_letter():
    """The stand-ins of the `tf.data` form are chosen by letter, the words cut by character."""
    table = load_table()
    for code in table.lower.keys() | table.stripped.keys():
        for mode in itertools.product((True, False), repeat=2):
            letters = table.letters(code, *mode)
            if len(letters) == 1:
                assert not (table.properties[code] ^ table.properties[letters[0]]) & CJK, hex(code)


@pytest.mark.parametrize("limit", [1, 200, 1500])
def test_words_as_long_as_may_be_in_graphs(limit):
    """The limit counts letters, be they one byte or four."""
    letters = ["a", "é", "\U00010400", "中"]
    tokens = [*letters, *(f"##{letter}" for letter in letters)]
    options = {"lowercase": False, "split_cjk": False, "max_chars_per_word": limit}
    tokenizer = WordPiece([*SPECIAL_TOKENS, *tokens, ","], **options)
    words = [letter * length for letter in letters for length in (limit - 1, limit, limit + 1)]
    words += ["a" * (limit - 1) + "é", "a" * limit + "é"]
    texts = [*words, *(f"{word},{word} a" for word in words), " ".join(words), ",".join(words)]
    ids = tokenizer(texts)
    assert graph_ids(tokenizer, texts) == ids
    assert ids[1:3] == [[ids[1][0], *[ids[1][-1]] * (limit - 1)], [tokenizer.unk_id]]


def test_tokens_that_no_word_can_hold():
    tokens = ["a b", "a\t", "\u200b", "a\u00ad", "a,", "##,", "##", "##中", "中a", "A", "É", "[a]"]
    tokenizer = WordPiece([*SPECIAL_TOKENS, "", *tokens, "", "a", "##b", "中", ","])
    texts = [
        "a b",
        "a,b",
        "ab##b",
        "a中b",
        "A É [a]",
        "a\u00adb\u200b",
        "[UNK] \ue000\ue002\uf8ff中",
    ]
    assert graph_ids(tokenizer, texts) == tokenizer(texts)
    assert tokenizer.tokenize("ab,中") == ["a", "##b", ",", "中"]


def test_tokens_too_long_for_tensorflow_text():
    for length in (64, 65, 300):
        tokens = ["a", "##a", "\U00010400" * length, "##" + "\U00010400" * (length - 2)]
        tokenizer = WordPiece([*SPECIAL_TOKENS, *tokens], lowercase=False)
        texts = [tokens[2], tokens[2] + "a", "a" + tokens[2], "a" + tokens[3][2:]]
        assert graph_ids(tokenizer, texts) == tokenizer(texts)


def test_without_tensorflow_text_the_core_graph_serves(small, monkeypatch):
    texts = tf.constant(["Hello worlds", "中文 é"])
    expected = small.to_tf(texts).to_list()
    monkeypatch.setattr(keras_bert.tokenizers, "HAS_TENSORFLOW_TEXT", False)
    tokenizer = WordPiece(SMALL)
    assert tokenizer.to_tf(texts).to_list() == expected
    graph = tf.function(tokenizer.to_tf).get_concrete_function(texts).graph.as_graph_def()
    assert "FastWordpiece" not in str(graph.library)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hello worlds", ["hello", "world", "##s"]),
        ("unaffable", ["un", "##aff", "##able"]),
        ("unaffablex", ["[UNK]"]),
        ("CAFÉ,a", ["cafe", ",", "a"]),
        ("中文a", ["中", "文", "a"]),
        ("he\u200bl\u00adlo\u0000 \ufffda", ["hello", "a"]),
        ("ΟΔΟΣ ΣΑΣ", ["ο", "##δ", "##ο", "##ς", "[UNK]"]),
        ("Σ σς", ["σ", "σ", "##ς"]),
        ("[MASK]", ["[", "mask", "]"]),
        ("a\u2028a\x85a", ["a", "a", "##a"]),
        ("", []),
        (" \t\n", []),
        ("a" * 200, ["a"] + ["##a"] * 199),
        ("a" * 201, ["[UNK]"]),
    ],
)
def test_pieces(small, text, pieces):
    assert small.tokenize(text) == pieces
    assert graph_ids(small, [text]) == [[SMALL.index(piece) for piece in pieces]]


def test_encode_has_offsets_of_the_original_string(small):
    encoding = small.encode("Cafe\u0301,  UNAFF\u00adable", "worlds")
    assert encoding.tokens == [
        "[CLS]", "cafe", ",", "un", "##aff", "##able", "[SEP]", "world", "##s", "[SEP]"
    ]  # fmt: skip
    assert encoding.offsets == [
        (0, 0), (0, 4), (5, 6), (8, 10), (10, 13), (14, 18), (0, 0), (0, 5), (5, 6), (0, 0)
    ]  # fmt: skip
    assert encoding.segment_ids == [0] * 7 + [1] * 3
    assert encoding.token_ids == [SMALL.index(token) for token in encoding.tokens]


@pytest.mark.parametrize("max_length", [None, 3, 4, 5, 7, 8, 12, 30])
def test_pairs_are_cut_from_the_longer_in_both_forms(small, max_length):
    lengths = [(0, 0), (1, 9), (9, 1), (4, 4), (5, 4), (9, 8)]
    texts = ["hello " * first for first, _ in lengths]
    pairs = ["good " * second for _, second in lengths]
    batch = small.encode_tf(tf.constant(texts), max_length, tf.constant(pairs))
    other = small.encode_tf(tf.constant(texts), max_length, tf.constant(pairs), core_ops=True)
    assert all(bool(tf.reduce_all(batch[name] == other[name])) for name in batch)
    for row, (first, second) in enumerate(lengths):
        while max_length is not None and first + second > max_length - 3:
            first, second = (first - 1, second) if first > second else (first, second - 1)
        encoding = small.encode(texts[row], pairs[row], max_length)
        assert encoding.tokens.count("hello") == first
        assert encoding.tokens.count("good") == second
        width = len(encoding.token_ids)
        assert batch["token_ids"][row].numpy().tolist()[:width] == encoding.token_ids
        assert batch["segment_ids"][row].numpy().tolist()[:width] == encoding.segment_ids
        assert int(tf.reduce_sum(batch["padding_mask"][row])) == width


def test_encode_tf_pads_to_the_longest_row(small):
    batch = small.encode_tf(tf.constant(["hello a a a a", "", "good"]), max_length=5)
    assert batch["token_ids"].numpy().tolist() == [
        [2, 5, 26, 26, 3],
        [2, 3, 0, 0, 0],
        [2, 8, 3, 0, 0],
    ]
    assert batch["padding_mask"].numpy().tolist() == [[1] * 5, [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert not batch["segment_ids"].numpy().any()
    assert all(x.dtype == tf.int32 for x in batch.values())


@pytest.mark.parametrize("pair", [None, "a"])
def test_max_length_must_leave_room(small, pair):
    with pytest.raises(ValueError, match=r"max_length=1\."):
        small.encode("a", pair, max_length=1)


def test_special_tokens_are_read_when_asked(small):
    texts = ["hello[MASK]a [SEP][MASK]", "[MASK", "MASK]", "[MASK]", "", "[mask] Σ[MASK]Σ"]
    ids = small(texts, special_tokens=True)
    assert ids[0] == [5, 4, 26, 3, 4]
    assert ids[3] == [4]
    assert ids[5][:3] == small("[mask]")
    assert graph_ids(small, texts, special_tokens=True) == ids
    assert small.encode("a [MASK]a", special_tokens=True).offsets[1:-1] == [
        (0, 1), (2, 8), (8, 9)
    ]  # fmt: skip


def test_graph_takes_empty_batches_and_maps_over_data(small):
    assert graph_ids(small, []) == []
    assert graph_ids(small, ["", b"\xff", " "]) == [[], [], []]
    data = tf.data.Dataset.from_tensor_slices(["hello", "", "worlds á"] * 3).batch(4)
    tokenizer = WordPiece(SMALL)
    data = data.map(tokenizer.to_tf, num_parallel_calls=2)
    del tokenizer  # the graph holds what it needs
    for _ in range(2):
        assert [row for batch in data for row in batch.to_list()] == [[5], [], [6, 7, 26]] * 3
    empty = small.encode_tf(tf.constant([], tf.string), 8)
    assert empty["token_ids"].shape[0] == 0


def test_saved_model_holds_the_tokenizer(tmp_path):
    tokenizer = WordPiece(random_vocabulary())
    module = tf.Module()
    module.serve = tf.function(
        lambda text: tokenizer.encode_tf(text, max_length=24, core_ops=True),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, str(tmp_path), signatures=module.serve)
    assert not list((tmp_path / "assets").glob("*"))
    texts = random_texts(200, seed=3)
    served = tf.saved_model.load(str(tmp_path)).signatures["serving_default"](
        text=tf.constant([text.encode() for text in texts])
    )
    for i, text in enumerate(texts):
        expected = tokenizer.encode(text, max_length=24).token_ids
        row = served["token_ids"][i].numpy()[: int(tf.reduce_sum(served["padding_mask"][i]))]
        assert row.tolist() == expected


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "None"), (3.5, "3.5"), (float("nan"), "nan"), (["a"], r"\['a'\]")]
)
def test_other_types_are_refused_with_their_row(small, value, shown):
    with pytest.raises(TypeError, match=f"row 1 is {shown}"):
        small(["a", value])
    with pytest.raises(TypeError, match=f"text is {shown}"):
        small.encode(value)


def test_bytes_are_utf_8_without_what_is_not():
    tokenizer = WordPiece([*SPECIAL_TOKENS, "caf", "ok", "naive"])
    text = b"caf\xe9 ok \xff na\xc3\xafve"
    assert tokenizer.tokenize(text) == ["caf", "ok", "naive"]
    assert graph_ids(tokenizer, [text]) == [[5, 6, 7]]


def test_decode_joins_pieces(small):
    assert small.decode(small.encode("Worlds, unaffable").token_ids) == (
        "[CLS] worlds , unaffable [SEP]"
    )
    with pytest.raises(ValueError, match="an id of -1"):
        small.decode([-1])


BASE = [*SPECIAL_TOKENS, "hello", "world", "##s", "good"]


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ("\n".join(BASE) + "\n", [5, 6, 7, 8, 1]),
        ("\r\n".join(BASE) + "\r\n", [5, 6, 7, 8, 1]),
        ("\n".join(BASE), [5, 6, 7, 8, 1]),
        ("\n".join([*BASE[:5], "", *BASE[5:]]), [6, 7, 8, 9, 1]),
        ("\n".join([*BASE[:5], "\u2028", *BASE[5:]]), [6, 7, 8, 9, 1]),
        ("\ufeff" + "\n".join(BASE), [5, 6, 7, 8, 1]),
        ("\n".join(BASE) + "\n\n\r\n\n", [5, 6, 7, 8, 1]),
    ],
    ids=["lf", "crlf", "no_final_newline", "blank_line", "u2028", "bom", "blank_tail"],
)
def test_vocabulary_files(tmp_path, content, ids):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content.encode())
    tokenizer = WordPiece(str(path))
    assert tokenizer("hello worlds good zz") == ids
    tokenizer.save_vocabulary(tmp_path / "again.txt")
    again = WordPiece(tmp_path / "again.txt")
    assert again.vocabulary == tokenizer.vocabulary
    assert again.vocabulary_hash == tokenizer.vocabulary_hash
    assert sorted(file.name for file in tmp_path.iterdir()) == ["again.txt", "vocab.txt"]


def test_bad_vocabularies_are_named(tmp_path):
    path = tmp_path / "vocab.txt"
    with pytest.raises(InputError, match=r"vocab\.txt.*no such"):
        WordPiece(path)
    path.write_text("\n".join([*BASE, "hello"]), encoding="utf-8")
    with pytest.raises(InputError, match=r"vocab\.txt: line 10 .*'hello' of line 6"):
        WordPiece(path)
    path.write_text("\n".join(BASE[:4]), encoding="utf-8")
    with pytest.raises(InputError, match=r"vocab\.txt: .*\[MASK\]"):
        WordPiece(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"vocab\.txt: .*UTF-8"):
        WordPiece(path)


def test_attributes():
    tokenizer = WordPiece(SMALL, max_chars_per_word=100)
    assert tokenizer.vocabulary == SMALL
    assert tokenizer.vocabulary_size == len(SMALL)
    assert tokenizer.special_ids == [0, 1, 2, 3, 4]
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id) == (0, 1, 2)
    assert (tokenizer.sep_id, tokenizer.mask_id) == (3, 4)
    assert tokenizer.vocabulary_hash == hashlib.sha256("\n".join(SMALL).encode()).hexdigest()
    config = json.loads(json.dumps(tokenizer.get_config()))
    assert config == {
        "lowercase": True, "strip_accents": True, "split_cjk": True, "max_chars_per_word": 100
    }  # fmt: skip
    assert WordPiece(SMALL, **config).get_config() == config
    tokenizer.to_tf(tf.constant(["a"]))
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy("Worlds") == tokenizer("Worlds") == graph_ids(copy, ["Worlds"])[0]


@pytest.mark.parametrize("form", ["python", "graph"])
def test_long_texts_take_linear_time(small, form):
    tokenize = small if form == "python" else lambda texts: graph_ids(small, texts)
    tokenize([""])
    start = time.perf_counter()
    ids = tokenize(["a" * 1_000_000, "hello " * 200_000, "Σ'" * 100_000])
    assert [len(row) for row in ids[:2]] == [1, 200_000]
    assert time.perf_counter() - start < 10
