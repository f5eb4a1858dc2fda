"""The pipeline's shards are those of one machine."""

import hashlib
import json

import numpy as np
import pytest

from keras_bert import WordPiece
from keras_bert.data import beam, creation, processes
from keras_bert.data.sources import Source, find_files
from keras_bert.errors import InputError


def make_corpus(folder, dev_documents=(0, 3)):
    rng = np.random.default_rng(0)
    for number in range(12):
        documents = [
            "\n".join(" ".join(rng.choice([*"abcde"], rng.integers(2, 9))) for _ in range(4))
            for _ in range(6)
        ]
        documents.insert(3, "a b c\nd e a")  # in every file
        (folder / f"{number:02}.txt").write_text("\n\n".join([*documents, "a"]), encoding="utf-8")
    inputs = (str(folder / "0[0-6].txt"), str(folder / "[01][0-9].txt"))
    files = [
        Source(path, size, work=work)
        for work, name in enumerate(inputs)
        for path, size in find_files(name)
        if work == 0 or int(path[-6:-4]) > 6
    ]
    return creation.Corpus(files, inputs, dev_documents)


def hashes(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*.tfrecord")
    }


@pytest.mark.parametrize("deduplicate", [False, True])
def test_beam_makes_what_one_machine_does(tmp_path, monkeypatch, deduplicate):
    pytest.importorskip("apache_beam", reason="Beam isn't tested: install apache-beam")
    for name, value in (("BLOCK_CHARACTERS", 300), ("BLOCK_DOCUMENTS", 3), ("PART_BYTES", 900)):
        monkeypatch.setattr(creation, name, value)
    corpus = make_corpus(tmp_path)
    assert len(corpus.parts()) == 3
    tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcde"])
    settings = creation.Settings(32, deduplicate=deduplicate, min_document_length=2, duplicates=2)

    made = beam.create(corpus, settings, tokenizer, tmp_path / "beam", "DirectRunner")

    (tmp_path / "local").mkdir()
    expected = processes.create(corpus, settings, tokenizer, tmp_path / "local", 1)
    assert hashes(tmp_path / "beam") == hashes(tmp_path / "local") != {}
    for split in ("train", "dev"):
        assert dict(made[split].counts) == dict(expected[split].counts)
        assert dict(made[split].shards) == dict(expected[split].shards)
    assert made["train"].counts["documents_too_short"] == 12
    assert made["train"].counts.get("documents_repeated", 0) == (11 if deduplicate else 0)
    assert json.dumps(made["dev"].counts)


def test_a_large_file_that_is_one_document_is_not_a_part():
    files = [Source(f"{i}", creation.PART_BYTES, "file") for i in range(40)]
    assert [len(part) for part in creation.Corpus(files, ["a"], [0]).parts()] == [16, 24]
    files = [Source(f"{i}", creation.PART_BYTES, "heading") for i in range(40)]
    assert [len(part) for part in creation.Corpus(files, ["a"], [0]).parts()] == [1] * 40


def test_the_hash_of_a_block_knows_its_documents():
    Document = creation.Document
    documents = [
        [Document(["a", "b"], 0), Document(["c"], 0)],
        [Document(["a"], 0), Document(["b", "c"], 0)],
        [Document(["a"], 0), Document(["b", "c"], 1)],
        [Document(["a\0b"], 0), Document(["\ud800"], 0)],
    ]
    hashed = [creation.Block("train", "train-0", each).hash() for each in documents]
    assert len(set(hashed)) == 4


def test_beam_is_missed(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "apache_beam", None)
    tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    with pytest.raises(InputError, match="--runner needs apache_beam: run `pip install"):
        beam.create(make_corpus(tmp_path), creation.Settings(), tokenizer, tmp_path, "DirectRunner")
