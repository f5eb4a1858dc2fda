import hashlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from keras_bert.data import batches, records
from keras_bert.errors import InputError

# The letter z isn't in the vocabulary, on purpose.
pytestmark = pytest.mark.filterwarnings(r"ignore:.* are \[UNK\]")

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "recipes" / "create_pretraining_data.py"


def load_recipe():
    spec = importlib.util.spec_from_file_location("create_pretraining_data", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


create_pretraining_data = load_recipe()


@pytest.fixture
def files(tmp_path):
    """Two texts of twelve documents each, and a vocabulary."""
    rng = np.random.default_rng(0)
    for name, words in [("a.txt", "abcde"), ("b.txt", "vwxyz")]:
        documents = [
            "\n".join(
                " ".join(rng.choice(list(words), rng.integers(2, 9))).capitalize() + "."
                for _ in range(rng.integers(3, 9))
            )
            for _ in range(12)
        ]
        (tmp_path / name).write_text("\n\n".join(documents), encoding="utf-8")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *"abcdevwxy"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    return tmp_path


def run(files, **kwargs):
    defaults = {
        "input": (str(files / "a.txt"), str(files / "b.txt")),
        "vocabulary": str(files / "vocab.txt"),
        "output_dir": str(files / "out"),
        "max_sequence_length": 32,
    }
    return create_pretraining_data.main(create_pretraining_data.Args(**(defaults | kwargs)))


def hashes(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.suffix == ".tfrecord" or path.name == "manifest.json"
    }


def test_makes_train_and_dev_folders(files, capsys):
    with pytest.warns(UserWarning, match=r"It lacks, with their counts, 'z' U\+007A"):
        metrics = run(files, dev_documents=(3, 2))
    folder = files / "out"
    assert json.loads((folder / "metrics.json").read_text(encoding="utf-8")) == metrics
    assert metrics["documents"] == 19 and metrics["dev"]["documents"] == 5
    for split, counts in [(folder, metrics), (folder / "dev", metrics["dev"])]:
        manifest = records.read_manifest(split)
        examples = list(records.read_examples(split).as_numpy_iterator())
        assert counts["examples"] == manifest["counts"]["examples"] == len(examples)
        assert len(manifest["shards"]) == min(8, len(examples))
        assert abs(2 * counts["random_next"] - counts["examples"]) <= 1
        assert counts["random_next"] == sum(e["next_sentence"] for e in examples)
        assert counts["tokens_lost"] <= 1 and counts["unknown_tokens"] > 0  # z
        assert manifest["settings"]["input"] == ["a.txt", "b.txt"]
        assert manifest["settings"]["dev_documents"] == [3, 2]
        assert next(iter(batches.pretraining(split, 2)))[0]["token_ids"].shape == (2, 32)
    output = capsys.readouterr().out
    assert output.count("next_sentence") == 3 and "[MASK]" in output and "[CLS]" in output


def test_the_bytes_do_not_depend_on_the_workers(files):
    run(files, dev_documents=(2,))
    run(files, dev_documents=(2,), workers=2, output_dir=str(files / "other"))
    assert hashes(files / "out") == hashes(files / "other")
    assert len(hashes(files / "out")) > 10
    run(files, dev_documents=(2,), seed=1, overwrite=True)
    assert hashes(files / "out") != hashes(files / "other")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"input": ()}, "--input needs at least one file"),
        ({"input": ("none.txt",)}, r"none\.txt isn't a file"),
        ({"input": ("empty.txt",)}, r"empty\.txt holds no text"),
        ({"input": ("one.txt",)}, r"one\.txt \(train\): .*only one document"),
        ({"input": ("invisible.txt",)}, r"holds no text"),
        ({"vocabulary": "no_mask.txt"}, r"no_mask\.txt: lacks the token \[MASK\]"),
        ({"dev_documents": (1, 2, 3)}, "--dev-documents takes one value .* 3 values for 2 inputs"),
        ({"dev_documents": (12,)}, "has only 12 documents"),
        ({"dev_documents": (1, 0)}, r"\(dev\): .*only one document"),
        ({"dev_documents": (-1,)}, "--dev-documents and --seed at least 0"),
        ({"document_break": ("blank",) * 3}, "--document-break takes one value"),
        ({"max_sequence_length": 4}, "--max-sequence-length must be at least 5"),
        ({"short_sequence_probability": 1.5}, "--short-sequence-probability must"),
    ],
)
def test_bad_input_leaves_nothing_behind(files, kwargs, message, monkeypatch):
    monkeypatch.chdir(files)
    (files / "empty.txt").write_text("\n\n", encoding="utf-8")
    (files / "one.txt").write_text("a b.\nc d.\n", encoding="utf-8")
    (files / "invisible.txt").write_text("\ufffd\n\n\ufffd\n", encoding="utf-8")
    (files / "no_mask.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        run(files, **kwargs)
    assert not (files / "out").exists()


def test_an_output_folder_is_not_replaced_unasked(files):
    run(files)
    before = hashes(files / "out")
    with pytest.raises(InputError, match="isn't empty: pass --overwrite"):
        run(files, seed=1)
    with pytest.raises(InputError, match="isn't a file"):
        run(files, input=("none.txt",), overwrite=True)
    assert hashes(files / "out") == before


def test_the_command_exits_with_2_and_one_sentence(files):
    command = [
        *(sys.executable, SCRIPT, "--input", files / "none.txt"),
        *("--vocabulary", files / "vocab.txt", "--no-lowercase", "--output-dir", files / "out"),
    ]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert result.returncode == 2, result.stderr
    last_line = result.stderr.rstrip().split("\n")[-1]
    assert last_line == f"error: {files / 'none.txt'} isn't a file: check the path."
    assert not (files / "out").exists()
