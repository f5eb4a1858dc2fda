"""The tokenizer's three forms against each other and against the original, on real vocabularies.

`KERAS_BERT_RANDOM_STRINGS=100000` (nox -s tokenizer_forms) compares that many random strings.
"""

from __future__ import annotations

import ast
import functools
import gzip
import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
import tracemalloc

import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.tokenizers import SPECIAL_TOKENS, WordPiece
from keras_bert.unicode_table import CAPITAL_SIGMA, FINAL_SIGMA, WordSplitter, load_table

LOWERCASE = {
    "bert-base-uncased": True,
    "bert-base-chinese": True,
    "bert-base-cased": False,
    "bert-base-multilingual-cased": False,
}
COUNT = int(os.environ.get("KERAS_BERT_RANDOM_STRINGS", "600"))

# Of the ids of so many random strings, whatever the Python.
DIGESTS = {
    600: {
        "bert-base-uncased": "af083bb376d096c2",
        "bert-base-chinese": "88c5010b34c5d6ed",
        "bert-base-cased": "f444d5c559f73413",
        "bert-base-multilingual-cased": "5acc11172c3fdd46",
    },
    100_000: {
        "bert-base-uncased": "0064b68f5f91d654",
        "bert-base-chinese": "f1efee4cf07b8ecd",
        "bert-base-cased": "2151efb1794d821c",
        "bert-base-multilingual-cased": "c14bb0e929fbbf43",
    },
}


@functools.cache
def tokenizer_of(path, lowercase, max_chars_per_word=200):
    return WordPiece(path, lowercase, max_chars_per_word=max_chars_per_word)


def python_ids(tokenizer, texts, **options):
    return tokenizer(texts, **options)


def tf_data_ids(tokenizer, texts, **options):
    data = tf.data.Dataset.from_tensor_slices(encoded(texts)).batch(500)
    data = data.map(lambda rows: tokenizer.to_tf(rows, **options), num_parallel_calls=2)
    return [row for batch in data for row in batch.to_list()]


def core_ops_ids(tokenizer, texts, **options):
    return tokenizer.to_tf(tf.constant(encoded(texts)), core_ops=True, **options).to_list()


FORMS = [python_ids, tf_data_ids, core_ops_ids]


def encoded(texts):
    return [text if isinstance(text, bytes) else text.encode() for text in texts]


# Random strings.


def random_strings(count):
    """`count` strings of up to 64 characters, a tenth of them bytes that aren't UTF-8."""
    rng = random.Random(0)
    table = load_table()
    mapped = sorted({*table.lower, *table.stripped, *table.combining_class})
    hard = [
        [code for code, letters in table.stripped.items() if not letters],
        [*table.combining_class, 0x0345, 0x05B0, 0x093C, 0x0CC6],
        [*range(0xAC00, 0xD7A4), *range(0x1100, 0x1200)],
        [*range(0xF900, 0xFB00), *range(0x2F800, 0x2FA20), *range(0x3300, 0x3400)],
    ]

    def any_char():
        code = rng.choice(mapped) if rng.random() < 0.3 else rng.randrange(0x110000)
        return " " if 0xD800 <= code < 0xE000 else chr(code)

    def hard_char(pool):
        return rng.choice("aeσΣ ,中") if rng.random() < 0.2 else chr(rng.choice(pool))

    broken = [b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe9", b"\xe2\x82", b"\xff"]
    strings = []
    for i in range(count):
        length = rng.randrange(65)
        if i % 4 < 2:
            text = "".join(any_char() for _ in range(length))
        elif i % 4 == 2:
            pool = rng.choice(hard)
            text = "".join(hard_char(pool) for _ in range(length))
        else:
            start = rng.randrange(len(REAL_TEXT) - 64)
            chars = list(REAL_TEXT[start : start + length])
            for _ in range(rng.randrange(4)):
                chars.insert(rng.randrange(len(chars) + 1), hard_char(rng.choice(hard)))
            text = "".join(chars)[:64]
        if i % 10 == 9:
            row = bytearray(text.encode())
            at = rng.randrange(len(row) + 1)
            row[at : at + rng.randrange(2)] = rng.choice(broken)
            text = bytes(row)
        strings.append(text)
    return strings


# The beginning of article 1 of the declaration of human rights, in languages of several scripts.
REAL_TEXT = (
    "All human beings are born free and equal in dignity and rights. They are endowed with reason "
    "and conscience and should act towards one another in a spirit of brotherhood. "
    "Tous les êtres humains naissent libres et égaux en dignité et en droits. "
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren. "
    "Все люди рождаются свободными и равными в своем достоинстве и правах. "
    "ΟΛΟΙ ΟΙ ΑΝΘΡΩΠΟΙ γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. "
    "人人生而自由,在尊严和权利上一律平等。すべての人間は、生まれながらにして自由であり、"
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. "
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। "
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. "
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ "
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền. İNSANLAR hür."
)


@pytest.mark.parametrize("name", LOWERCASE)
def test_random_strings(shared, name):
    tokenizer = tokenizer_of(shared(f"data/vocab/{name}/vocab.txt"), LOWERCASE[name])
    texts = random_strings(COUNT)
    ids = tokenizer(texts)
    for form in FORMS[1:]:
        differing = [
            ascii(text)
            for text, row, expected in zip(texts, form(tokenizer, texts), ids)
            if row != expected
        ]
        assert not differing, f"{form.__name__}: {len(differing)}, first {differing[0]}"
    for text, row in zip(texts, ids):
        check_offsets(tokenizer, text, row)
    digest = hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]
    print(f"{COUNT} random strings, {name}: {digest}")
    assert COUNT not in DIGESTS or digest == DIGESTS[COUNT][name]


def check_offsets(tokenizer, text, ids):
    """Spans lie inside, go forward, and each holds its piece's letters."""
    text = text.decode(errors="ignore") if isinstance(text, bytes) else text
    encoding = tokenizer.encode(text)
    spans = encoding.offsets[1:-1]
    assert encoding.token_ids[1:-1] == ids
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in itertools.pairwise(spans))
    for token, (start, end) in zip(encoding.tokens[1:-1], spans):
        if token != "[UNK]":
            part = text[start:end]
            letters = set("".join(tokenizer.splitter.words(part)))
            if CAPITAL_SIGMA in part and tokenizer.lowercase:
                letters.add(FINAL_SIGMA)  # whether it's final, the text around tells
            assert set(token.removeprefix("##")) <= letters, ascii((text, token, part))


# Texts and their ids by the original code.


@pytest.mark.parametrize("name", LOWERCASE)
def test_golden_texts(shared, name):
    tokenizer = tokenizer_of(shared(f"data/vocab/{name}/vocab.txt"), LOWERCASE[name])
    with gzip.open(shared("golden/tokenizer/golden_tokenizer_public.jsonl.gz")) as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == 1398
    texts = [row["text"] for row in rows]
    # Where the two differ, the original code is right.
    expected = [row["google"].get(name, row["ids"][name]) for row in rows]
    for form in FORMS:
        assert form(tokenizer, texts) == expected, form.__name__
    if name == "bert-base-uncased":
        for row in rows:
            if name not in row["google"]:
                offsets = tokenizer.encode(row["text"]).offsets[1:-1]
                assert [list(span) for span in offsets] == row["off"], ascii(row["text"])


# Cases from reports.


@pytest.fixture
def cases(shared):
    lines = shared("cases/cases.jsonl").read_text(encoding="utf-8").split("\n")
    return {case["id"]: case for case in map(json.loads, filter(None, lines))}


@pytest.fixture
def uncased(shared):
    return tokenizer_of(shared("data/vocab/bert-base-uncased/vocab.txt"), True)


def test_cases_of_ids(cases, uncased):
    """TOK-01 to 29, but for those that say more than ids; they follow."""
    chosen = [c for c in cases.values() if c["id"].startswith("TOK-") and "ids" in c["expected"]]
    assert {case["id"] for case in chosen} >= {"TOK-01", "TOK-07", "TOK-18", "TOK-26", "TOK-29"}
    texts = [case["input"]["text"] for case in chosen]
    for form in FORMS:
        for case, ids in zip(chosen, form(uncased, texts), strict=True):
            assert ids == case["expected"]["ids"], (case["id"], form.__name__)
    for case in chosen:
        assert uncased(case["input"]["text"]) == case["expected"]["ids"]
        assert uncased.tokenize(case["input"]["text"]) == case["expected"]["tokens"]


@pytest.mark.parametrize("form", FORMS)
def test_case_of_special_tokens(cases, uncased, form):
    case = cases["TOK-07"]
    [ids] = form(uncased, [case["input"]["text"]], special_tokens=True)
    assert case["expected"]["optin_ids_for_MASK"] in ids
    assert case["expected"]["optin_ids_for_SEP"] in ids
    assert len(ids) == 5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("limit", [200, 100])
def test_case_of_long_words(cases, shared, form, limit):
    """TOK-21."""
    tokenizer = tokenizer_of(shared("data/vocab/bert-base-uncased/vocab.txt"), True, limit)
    lengths = [length for _, length in cases["TOK-21"]["input"]["cases"]]
    rows = form(tokenizer, ["z" * length for length in lengths])
    for length, row in zip(lengths, rows):
        if length > limit:
            assert row == [tokenizer.unk_id]
        else:
            assert row[0] == 1062
            assert tokenizer.decode(row) == "z" * length


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("cased", (False, None)),
        ("lowercase+strip=auto", (True, None)),
        ("lowercase+strip=False", (True, False)),
        ("cased+strip=True", (False, True)),
    ],
)
def test_case_of_modes(cases, mode, options):
    """TOK-23."""
    text = cases["TOK-23"]["input"]["text"]
    words = cases["TOK-23"]["expected"]["basic"][mode]
    assert WordSplitter(*options).words(text) == words
    tokenizer = WordPiece([*SPECIAL_TOKENS, *words], *options)
    for form in FORMS:
        assert form(tokenizer, [text]) == [[5 + i for i in range(len(words))]]


def test_case_of_offsets(cases, uncased):
    """TOK-24."""
    spans: dict[str, list[int]] = {}
    encoding = uncased.encode(cases["TOK-24"]["input"]["text"])
    for piece, (start, end) in zip(encoding.tokens[1:-1], encoding.offsets[1:-1], strict=True):
        if piece.startswith("##"):
            last = list(spans)[-1]
            spans[last + piece[2:]] = [spans.pop(last)[0], end]
        else:
            spans[piece] = [start, end]
    assert list(map(list, spans.items())) == cases["TOK-24"]["expected"]["tokens_offsets"]


LOADER = """
import json, sys
import tensorflow as tf
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
served = serve(text=tf.constant([bytes.fromhex(x) for x in json.load(sys.stdin)]))
rows = tf.RaggedTensor.from_row_lengths(served["ids"], served["lengths"]).to_list()
print(json.dumps([rows, sorted({"keras_bert", "tensorflow_text"} & set(sys.modules))]))
"""


def test_case_of_a_fresh_process(cases, uncased, tmp_path):
    """TOK-25: Python against the exported graph, which needs TensorFlow alone."""
    texts = [c["input"]["text"] for c in cases.values() if "text" in c["input"]
             and c["id"].startswith("TOK-")]  # fmt: skip
    texts = encoded([*texts, *random_strings(200)])

    def serve(text):
        ids = uncased.to_tf(text, core_ops=True)
        return {"ids": ids.flat_values, "lengths": ids.row_lengths()}

    module = tf.Module()
    module.serve = tf.function(serve, input_signature=[tf.TensorSpec([None], tf.string, "text")])
    tf.saved_model.save(module, str(tmp_path), signatures=module.serve)
    output = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path)],
        input=json.dumps([text.hex() for text in texts]),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    served, extra_modules = json.loads(output.splitlines()[-1])
    assert extra_modules == []
    assert served == uncased(texts)


def test_case_of_vocabulary_files(cases, tmp_path):
    """ROB-01."""
    base, text = cases["ROB-01"]["input"]["base"], cases["ROB-01"]["input"]["text"]
    expected = cases["ROB-01"]["expected"]
    lines = "\n".join(base) + "\n"
    contents = {
        "lf": lines,
        "crlf": lines.replace("\n", "\r\n"),
        "no_final_newline": lines.removesuffix("\n"),
        "blank_line_after_MASK": "\n".join([*base[:5], "", *base[5:]]),
        "u2028_token_after_MASK": "\n".join([*base[:5], "\u2028", *base[5:]]),
        "bom": "\ufeff" + lines,
        "trailing_blank_lines": lines + "\n\n\n",
    }
    assert contents.keys() | {"duplicates"} == expected.keys()
    path = tmp_path / "vocab.txt"
    for name, content in contents.items():
        path.write_bytes(content.encode())
        tokenizer = WordPiece(path)
        ids = expected[name] if isinstance(expected[name], list) else expected["lf"]
        for form in FORMS:
            assert form(tokenizer, [text]) == [ids], (name, form.__name__)
    path.write_text(lines + "hello\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 10 .*'hello' of line 6"):
        WordPiece(path)


def test_case_of_wrong_types(cases, uncased):
    """ROB-03."""
    first, *others = cases["ROB-03"]["input"]["values"]
    for form in FORMS:
        [ids] = form(uncased, [ast.literal_eval(first)])
        assert uncased.decode(ids) == " ".join(cases["ROB-03"]["expected"]["bytes_tokens"])
    for value in others:
        value = float("nan") if value == "<float nan>" else value
        with pytest.raises(TypeError, match="row 1 is"):
            uncased(["a", value])
        with pytest.raises((TypeError, ValueError)):
            uncased.to_tf(["a", value])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", [0, 1], ids=["one_word", "many_words"])
def test_case_of_long_lines(cases, uncased, form, case):
    """ROB-06: in linear time, and within seconds."""
    text = [
        factor * int(times)
        for factor, times in (
            (ast.literal_eval(expression.split("*")[0]), expression.split("*")[1])
            for expression in cases["ROB-06"]["input"]["texts"]
        )
    ][case]

    def seconds(text):
        started = time.process_time()
        [ids] = form(uncased, [text])
        return time.process_time() - started, len(ids)

    seconds("warm up")
    half = min(seconds(text[: len(text) // 2])[0] for _ in range(3))
    whole, num_tokens = min(seconds(text) for _ in range(3))
    assert num_tokens == cases["ROB-06"]["expected"]["tokens"][case]
    assert whole < 5
    assert whole < 2.6 * half + 0.1  # the constant: what a call costs, and the clock's grain


def test_case_of_long_lines_in_memory(cases, uncased):
    """ROB-06: Python's own memory; a graph's isn't traced."""
    tracemalloc.start()
    uncased("a" * 1_000_000)
    uncased("hello " * 200_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500e6
