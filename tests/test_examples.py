import hashlib
import itertools
import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

from keras_bert.data.examples import TokenizedDocuments, make_examples
from keras_bert.errors import InputError

CLS, SEP = 1, 2
PRINT_HASH = """
from test_examples import hash_of, make_documents, pairs
print(hash_of(pairs(make_documents(20), 32)))
"""


class Document(NamedTuple):
    sentences: list[list[int]]
    work: int = 0
    continues: list[list[int]] | None = None


def flat(documents):
    sentences = [sentence for document in documents for sentence in document.sentences]
    has_words = bool(documents) and documents[0].continues is not None
    words = [row for document in documents for row in document.continues or ()]
    return TokenizedDocuments(
        np.array([*itertools.chain(*sentences)], np.int32),
        np.cumsum([len(sentence) for sentence in sentences], dtype=np.int64),
        np.cumsum([len(document.sentences) for document in documents], dtype=np.int64),
        np.array([document.work for document in documents], np.int64),
        np.array([*itertools.chain(*words)], np.int32) if has_words else None,
    )


def hash_of(value):
    return hashlib.sha256(repr(value).encode("utf-8")).hexdigest()


def make_documents(count, seed=0):
    """Documents of sentences of 1 to 40 tokens; every token of the corpus has its own id."""
    rng = np.random.default_rng(seed)
    documents, next_id = [], 10
    for work in range(count):
        sentences = []
        for length in rng.integers(1, 41, rng.integers(1, 30)):
            sentences.append(list(range(next_id, next_id + int(length))))
            next_id += int(length)
        documents.append(Document(sentences, work))
    return documents


def pairs(documents, max_sequence_length=64, seed=0, **kwargs):
    examples, tokens_lost = make_examples(
        flat(documents), max_sequence_length, seed, cls_id=CLS, sep_id=SEP, **kwargs
    )
    assert [len(example.token_ids) for example in examples] == examples.lengths().tolist()
    return list(examples), tokens_lost


def parts(example):
    """A and B, after a check of what stands around them."""
    middle = example.segment_ids.index(1)
    a, b = example.token_ids[1 : middle - 1], example.token_ids[middle:-1]
    assert example.token_ids == [CLS, *a, SEP, *b, SEP]
    assert example.segment_ids == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert a and b
    return a, b


@pytest.mark.parametrize("max_sequence_length", [5, 6, 16, 64, 512])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pairs_are_what_their_labels_say(max_sequence_length, seed):
    documents = make_documents(25, seed)
    owner = {t: d.work for d in documents for s in d.sentences for t in s}
    examples, tokens_lost = pairs(documents, max_sequence_length, seed)

    seen = set()
    for example in examples:
        a, b = parts(example)
        assert len(example.token_ids) <= max_sequence_length
        # Ids were given in order of the text, so a contiguous part is a range.
        assert a == list(range(a[0], a[0] + len(a)))
        assert b == list(range(b[0], b[0] + len(b)))
        assert example.works == (owner[a[0]], owner[b[0]])
        if example.next_sentence == 0:
            assert b[0] == a[-1] + 1 and owner[a[0]] == owner[b[-1]]
        else:
            assert example.works[0] != example.works[1]
        seen.update(a, b)
    labels = [example.next_sentence for example in examples]
    even = len(labels) // 2 * 2
    assert labels[:even] == [1, 0] * (even // 2)  # any even number in a row is half random
    assert even == len(labels) or max_sequence_length < 8  # where no pair can be cut in two
    assert len(owner) - len(seen) <= tokens_lost <= 1


def test_a_true_pair_is_labelled_0():  # NSP-04
    documents = [Document([[10], [11]], 0), Document([[20], [21]], 1)]
    for seed in range(5):
        for example in pairs(documents, seed=seed)[0]:
            a, b = parts(example)
            assert example.next_sentence == (0 if b[0] == a[-1] + 1 else 1)


def test_documents_of_one_sentence_are_cut_in_two():
    documents = [Document([[10 * i, 10 * i + 1]], i) for i in range(1, 12)]
    examples, tokens_lost = pairs(documents)
    assert len(examples) in (11, 12) and tokens_lost == 0
    assert sum(e.next_sentence for e in examples) in (5, 6)


def test_one_token_documents_can_only_be_random():
    documents = [Document([[i]], i) for i in range(10, 13)]
    examples, tokens_lost = pairs(documents)
    assert [e.next_sentence for e in examples] == [1] and tokens_lost == 2


def test_length_hardly_tells_the_label():
    examples, _ = pairs(make_documents(400), 128)
    lengths = np.array([len(e.token_ids) for e in examples])
    is_random = np.array([e.next_sentence == 1 for e in examples])
    assert lengths[is_random].mean() == pytest.approx(lengths[~is_random].mean(), rel=0.08)
    assert lengths.mean() > 0.8 * 128


def test_short_sequences():
    documents = make_documents(100)
    always, _ = pairs(documents, 128, short_sequence_probability=1.0)
    never, _ = pairs(documents, 128, short_sequence_probability=0.0)
    assert len(always) > 1.3 * len(never)


def test_the_same_seed_gives_the_same_examples():  # MLM-10
    assert pairs(make_documents(20), seed=0) == pairs(make_documents(20), seed=0)
    assert pairs(make_documents(20), seed=0) != pairs(make_documents(20), seed=1)

    # Nor does the order of sets and hashes matter, which is another in this process.
    tests = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join([os.path.dirname(tests), tests, os.environ.get("PYTHONPATH", "")])
    elsewhere = subprocess.run(
        [sys.executable, "-c", PRINT_HASH],
        env=os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == hash_of(pairs(make_documents(20), 32))


def test_bad_arguments():
    two = make_documents(2)
    with pytest.raises(ValueError, match=r"`max_sequence_length` must be at least 5.*=4"):
        pairs(two, 4)  # MLM-13
    with pytest.raises(ValueError, match="`short_sequence_probability`"):
        pairs(two, short_sequence_probability=2.0)
    with pytest.raises(ValueError, match="`pairs` must be one of"):
        pairs(two, pairs="none")
    with pytest.raises(InputError, match="only one document"):
        pairs([*two[:1], Document([]), Document([[]])])  # NSP-01
    with pytest.raises(InputError, match="no text"):
        pairs([])


def test_sentence_order():
    documents = make_documents(40)
    all_tokens = {t for d in documents for s in d.sentences for t in s}
    examples, tokens_lost = pairs(documents, pairs="sentence_order")
    seen = []
    for example in examples:
        a, b = parts(example)
        first, second = (b, a) if example.next_sentence else (a, b)
        assert [*first, *second] == list(range(first[0], first[0] + len(a) + len(b)))
        assert len(example.token_ids) <= 64 and example.works[0] == example.works[1]
        seen += first + second
    labels = [example.next_sentence for example in examples]
    assert labels == [1, 0] * (len(labels) // 2)
    assert len(seen) == len(set(seen)) == len(all_tokens) - tokens_lost and tokens_lost <= 1
    one, _ = pairs(documents[:1], pairs="sentence_order")  # no other document is needed
    assert len(one) > 1


@pytest.mark.parametrize("max_sequence_length", [5, 32, 128])
def test_full_sentences(max_sequence_length):
    documents = make_documents(40)
    starts = {s[0] for d in documents for s in d.sentences}
    examples, tokens_lost = pairs(documents, max_sequence_length, pairs="full_sentences")
    seen = []
    for example in examples:
        assert example.token_ids[0] == CLS and example.token_ids[-1] == SEP
        text = example.token_ids[1:-1]
        assert 0 < len(text) <= max_sequence_length - 2
        assert text == list(range(text[0], text[0] + len(text)))
        assert example.segment_ids == [0] * len(example.token_ids)
        assert example.next_sentence == 0 and example.works[0] == example.works[1]
        assert max_sequence_length < 42 or text[0] in starts
        seen += text
    assert tokens_lost == 0
    assert sorted(seen) == [t for d in documents for s in d.sentences for t in s]
    assert len(pairs(documents[:1], pairs="full_sentences")[0]) > 1


def test_continues_goes_with_its_tokens():
    documents = [
        Document(d.sentences, d.work, [[t % 3 % 2 for t in s] for s in d.sentences])
        for d in make_documents(9)
    ]
    for example in pairs(documents)[0]:
        for token, continues in zip(example.token_ids, example.continues):
            assert continues == (token % 3 % 2 if token > SEP else 0)
