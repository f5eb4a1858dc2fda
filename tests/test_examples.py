import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from keras_bert.data.examples import TokenizedDocument, sentence_pairs
from keras_bert.errors import InputError

CLS, SEP = 1, 2
PRINT_HASH = """
from test_examples import hash_of, make_documents, pairs
print(hash_of(pairs(make_documents(20), 32)))
"""


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
        documents.append(TokenizedDocument(sentences, work))
    return documents


def pairs(documents, max_sequence_length=64, seed=0, **kwargs):
    return sentence_pairs(documents, max_sequence_length, seed, cls_id=CLS, sep_id=SEP, **kwargs)


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
    assert abs(2 * sum(e.next_sentence for e in examples) - len(examples)) <= 1
    assert len(owner) - len(seen) <= tokens_lost <= 1


def test_a_true_pair_is_labelled_0():  # NSP-04
    documents = [TokenizedDocument([[10], [11]], 0), TokenizedDocument([[20], [21]], 1)]
    for seed in range(5):
        for example in pairs(documents, seed=seed)[0]:
            a, b = parts(example)
            assert example.next_sentence == (0 if b[0] == a[-1] + 1 else 1)


def test_documents_of_one_sentence_are_cut_in_two():
    documents = [TokenizedDocument([[10 * i, 10 * i + 1]], i) for i in range(1, 12)]
    examples, tokens_lost = pairs(documents)
    assert len(examples) == 11 and tokens_lost == 0
    assert sum(e.next_sentence for e in examples) in (5, 6)


def test_one_token_documents_can_only_be_random():
    documents = [TokenizedDocument([[i]], i) for i in range(10, 13)]
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
    with pytest.raises(InputError, match="only one document"):
        pairs([*two[:1], TokenizedDocument([]), TokenizedDocument([[]])])  # NSP-01
    with pytest.raises(InputError, match="no text"):
        pairs([])
