import hashlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from keras_bert import remote
from keras_bert.data import batches, beam, creation, processes, records
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
        assert len(manifest["shards"]) == min(8, len(examples) // 2)
        assert abs(2 * counts["random_next"] - counts["examples"]) <= 1
        assert counts["random_next"] == sum(e["next_sentence"] for e in examples)
        assert counts["tokens_lost"] <= 1 and counts["unknown_tokens"] > 0  # z
        assert manifest["settings"]["input"] == ["a.txt", "b.txt"]
        assert manifest["settings"]["dev_documents"] == [3, 2]
        assert next(iter(batches.pretraining(split, 2)))[0]["token_ids"].shape == (2, 32)
    output = capsys.readouterr().out
    assert output.count("next_sentence") == 3 and "mask(" in output and "[CLS]" in output


def test_the_bytes_do_not_depend_on_the_workers(files, small_blocks):
    run(files, dev_documents=(2,), workers=1)
    run(files, dev_documents=(2,), workers=2, output_dir=str(files / "other"))
    assert hashes(files / "out") == hashes(files / "other")
    assert len(hashes(files / "out")) > 10
    run(files, dev_documents=(2,), workers=1, seed=1, overwrite=True)
    assert hashes(files / "out") != hashes(files / "other")


@pytest.fixture
def small_blocks(monkeypatch):
    """A corpus of many blocks and parts."""
    monkeypatch.setattr(creation, "BLOCK_CHARACTERS", 300)
    monkeypatch.setattr(creation, "BLOCK_DOCUMENTS", 2)
    monkeypatch.setattr(creation, "PART_BYTES", 500)


def labels_of(folder):
    """The labels in each shard."""
    return [
        [
            int(records.parse(record)["next_sentence"])
            for record in tf.data.TFRecordDataset(str(path))
        ]
        for path in sorted(folder.glob("*.tfrecord"))
    ]


@pytest.mark.parametrize("pairs", ["next_sentence", "sentence_order", "full_sentences"])
def test_many_blocks(files, small_blocks, pairs):
    metrics = run(files, dev_documents=(3,), pairs=pairs, duplicates=2, workers=1)
    shards = labels_of(files / "out")
    assert len(shards) == 8 and sum(map(len, shards)) == metrics["examples"]
    for labels in shards:
        expected = 0 if pairs == "full_sentences" else len(labels) / 2
        assert sum(labels) == expected and len(labels) > 3
        assert pairs == "full_sentences" or labels != [1, 0] * (len(labels) // 2)
    manifest = records.read_manifest(files / "out")
    assert manifest["settings"]["pairs"] == pairs and manifest["settings"]["words"] is False
    assert metrics["documents"] == 18 and metrics["lost_share"] < 0.01
    assert not [*(files / "out").rglob("*unfinished*")]
    inputs, _, weights = next(iter(batches.pretraining(files / "out", 4)))
    assert (weights["next_sentence"].numpy() == (pairs != "full_sentences")).all()
    assert inputs["token_ids"].shape == (4, 32)


@pytest.mark.parametrize("after", [3, 13])
def test_a_stopped_run_goes_on(files, small_blocks, monkeypatch, after):
    """Stopped in the midst of the blocks or the shards, twice; the end is the same."""
    arguments = {"dev_documents": (3,), "workers": 1}
    run(files, **arguments)
    stop = {"left": after}

    def replace(*args):
        stop["left"] -= 1
        if stop["left"] < 0:
            raise KeyboardInterrupt
        os_replace(*args)

    def rename(*args, **kwargs):
        stop["left"] -= 1
        if stop["left"] < 0:
            raise KeyboardInterrupt
        gfile_rename(*args, **kwargs)

    os_replace, gfile_rename = os.replace, tf.io.gfile.rename
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(tf.io.gfile, "rename", rename)
    other = str(files / "other")
    for resume in (False, True):
        stop["left"] = after
        with pytest.raises(KeyboardInterrupt):
            run(files, output_dir=other, resume=resume, **arguments)
    stop["left"] = 1000
    metrics = run(files, output_dir=other, resume=True, **arguments)
    assert hashes(files / "out") == hashes(files / "other")
    assert not [*(files / "other").rglob("*unfinished*")]
    assert run(files, output_dir=other, resume=True, **arguments) == metrics  # it's over
    with pytest.raises(InputError, match="was begun with --seed 0"):
        run(files, output_dir=other, resume=True, seed=1, **arguments)
    change_vocabulary(files)
    with pytest.raises(InputError, match="the vocabulary is another one"):
        run(files, output_dir=other, resume=True, **arguments)


def change_vocabulary(files):
    text = (files / "vocab.txt").read_text(encoding="utf-8")
    (files / "vocab.txt").write_text(text.replace("e\nv", "v\ne"), encoding="utf-8")


def stop(*args):
    raise KeyboardInterrupt


def test_other_text_is_not_resumed(files, small_blocks, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(processes, "make_plan", stop)
        with pytest.raises(KeyboardInterrupt):
            run(files, workers=1)
    text = (files / "b.txt").read_text(encoding="utf-8")
    (files / "b.txt").write_text(text.replace("v", "w"), encoding="utf-8")
    with pytest.raises(InputError, match=r"was begun on other text .*--overwrite"):
        run(files, workers=1, resume=True)


def test_shards_are_resumed_by_several(files, small_blocks, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(processes, "write_shards", stop)
        with pytest.raises(KeyboardInterrupt):
            run(files, workers=1)
    with pytest.raises(InputError, match="was begun with --seed 0"):
        run(files, workers=1, resume=True, seed=1)
    vocabulary = (files / "vocab.txt").read_bytes()
    change_vocabulary(files)
    with pytest.raises(InputError, match=r"another vocabulary or casing: .*--overwrite"):
        run(files, workers=1, resume=True)
    (files / "vocab.txt").write_bytes(vocabulary)
    started = []
    monkeypatch.setattr(processes.Workers, "start", lambda pool: started.append(pool))
    run(files, workers=2, resume=True)
    assert len(started) == 1


def test_a_later_block_that_cannot_be_paired_is_named(files, small_blocks):
    documents = (files / "a.txt").read_text(encoding="utf-8")
    (files / "a.txt").write_text(documents + "\n\n" + documents, encoding="utf-8")
    (files / "b.txt").write_text("a b c.\n" * 100, encoding="utf-8")
    with pytest.raises(InputError, match=r"^\S*b\.txt \(train\): .*only one document"):
        run(files, workers=1)


def test_documents_are_left_out(files):
    text = (files / "a.txt").read_text(encoding="utf-8")
    (files / "a.txt").write_text(f"{text}\n\nA.\n\n{text}", encoding="utf-8")
    metrics = run(files, deduplicate=True, min_document_length=3)
    assert metrics["documents"] == 24
    assert metrics["documents_repeated"] == 12 and metrics["documents_too_short"] == 1
    assert run(files, overwrite=True)["documents"] == 24 + 13


def test_the_words_of_a_segmenter(files):
    rng = np.random.default_rng(0)
    lines = [" ".join("".join(rng.choice([*"abcd"], 2)) for _ in range(8)) for _ in range(40)]
    text = "\n\n".join(
        " ".join(chr(0x4E00 + ord(c)) if c != " " else c for c in line) for line in lines
    )
    text = text.replace("   ", "|").replace(" ", "").replace("|", " ")
    (files / "zh.txt").write_text(text, encoding="utf-8")
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(chr(0x4E00 + ord(c)) for c in "abcd"),
    ]
    (files / "zh_vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    metrics = run(
        files, input=(str(files / "zh.txt"),), vocabulary=str(files / "zh_vocab.txt"), words=True
    )
    assert metrics["tokens"] == 40 * 16 and metrics["unknown_tokens"] == 0
    for example in records.read_examples(files / "out").as_numpy_iterator():
        assert example["continues"][example["token_ids"] < 5].sum() == 0
        assert 0.3 < example["continues"].mean() < 0.5
    assert records.read_manifest(files / "out")["settings"]["words"] is True


def test_copies_that_are_masked_once_and_for_all(files):
    metrics = run(files, workers=1, static_masking=2)
    masked = batches.pretraining(files / "out" / "static", 4, training=False)
    parts = [part for batch in masked.as_numpy_iterator() for part in batch[0]["token_ids"]]
    assert len(parts) == 2 * metrics["examples"]
    assert any((row == 4).any() for row in parts)


def test_a_folder_on_a_store(files):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/creation/vocab.txt", (files / "vocab.txt").read_bytes())
    run(
        files,
        workers=1,
        vocabulary="memory://creation/vocab.txt",
        output_dir="memory://creation/out",
    )
    remote.copy_out()
    names = {path.rsplit("/", 1)[-1] for path in memory.find("/creation/out")}
    assert {"manifest.json", "vocab.txt", "metrics.json", "report.html"} <= names
    assert any(name.endswith(".tfrecord") for name in names)
    memory.store.clear()
    remote.working_copy.cache_clear()
    remote._sent.clear()


def test_beam_replaces_a_store_only_when_asked(files):
    store = f"file://{files}/store"  # a store to us, and one that Beam's other processes see
    names = ["manifest.json", "dev/manifest.json", "examples-9", "dev/examples-9"]
    (files / "store" / "dev").mkdir(parents=True)
    for name in names:
        (files / "store" / name).touch()
    assert beam.earlier_files(store) == [f"{store}/{name}" for name in names]
    with pytest.raises(InputError, match=r"store/manifest\.json is there: pass --overwrite"):
        run(files, output_dir=store, runner="DirectRunner")
    if importlib.util.find_spec("apache_beam") is None:
        pytest.skip("all but the replacing is tested: install apache-beam")
    metrics = run(files, output_dir=store, runner="DirectRunner", overwrite=True)
    manifest = records.read_manifest(files / "store")
    assert manifest["counts"]["examples"] == metrics["examples"]
    assert json.loads((files / "store" / "metrics.json").read_text(encoding="utf-8")) == metrics
    assert not any((files / "store" / name).exists() for name in names[1:])


def test_the_report(files):
    run(files, dev_documents=(2,))
    page = (files / "out" / "report.html").read_text(encoding="utf-8")
    for words in (
        "unknown share",
        "random next share",
        "fill",
        "<svg",
        "20 examples",
        "shown as mask",
    ):
        assert words in page
    assert page.count('class="example"') == 20


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"duplicates": 0}, "--workers and --duplicates must be at least 1"),
        ({"workers": 0}, "--workers and --duplicates must be at least 1"),
        ({"input": ()}, "--input needs at least one file"),
        ({"input": ("none.txt",)}, r"none\.txt isn't a file"),
        ({"input": ("empty.txt",)}, r"empty\.txt holds no text"),
        ({"input": ("one.txt",)}, r"one\.txt \(train\): .*only one document"),
        ({"input": ("invisible.txt",)}, r"holds no text"),
        ({"vocabulary": "no_mask.txt"}, r"no_mask\.txt: lacks the token \[MASK\]"),
        ({"dev_documents": (1, 2, 3)}, "--dev-documents takes one value .* 3 values for 2 inputs"),
        ({"dev_documents": (12,)}, "has only 12 documents"),
        ({"dev_documents": (1, 0)}, "--dev-documents must hold out two documents or more"),
        ({"dev_documents": (-1,)}, "--dev-documents, --seed, .* must be at least 0"),
        ({"document_break": ("blank",) * 3}, "--document-break takes one value"),
        ({"max_sequence_length": 4}, "--max-sequence-length must be at least 5"),
        ({"short_sequence_probability": 1.5}, "--short-sequence-probability must"),
        ({"static_masking": 1, "pairs": "full_sentences"}, "--static-masking needs pairs"),
        ({"static_masking": 1, "runner": "DirectRunner"}, "--static-masking runs on one machine"),
        ({"resume": True, "runner": "DirectRunner"}, "--runner starts anew each time"),
        ({"runner": "DataflowRunner", "input": ("gs://a/b",)}, "out is on this machine"),
        ({"input": (".",)}, r"out lies in the input \. and would be read as text"),
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


def test_old_data_stay_until_all_text_is_read(files, small_blocks, monkeypatch):
    """A bad line late in the input costs nothing, and old shards are no shards of a new run."""
    run(files, workers=1)
    before = hashes(files / "out")
    (files / "late.txt").write_bytes(b"a b c.\n\nd e.\n\n\xff\n")
    late = tuple(str(files / name) for name in ("a.txt", "b.txt", "late.txt"))
    with pytest.raises(InputError, match=r"late\.txt, line 5"):
        run(files, workers=1, input=late, overwrite=True)
    assert hashes(files / "out") == before

    (files / "a.txt").write_text("c d. a b.\n\ne a. d c b.\n", encoding="utf-8")
    run(files, workers=1, output_dir=str(files / "whole"))

    def stop(*_):
        raise KeyboardInterrupt

    for where in ("make_plan", "read_slice"):  # before the old data go, and after
        with monkeypatch.context() as patch:
            patch.setattr(processes, where, stop)
            with pytest.raises(KeyboardInterrupt):
                run(files, workers=1, overwrite=True)
        assert (hashes(files / "out") == before) == (where == "make_plan")
    run(files, workers=1, resume=True)
    assert hashes(files / "out") == hashes(files / "whole")


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


def start(folder, output, *more):
    """The recipe as a process, on the corpus that `corpus` has made."""
    command = [
        *(sys.executable, SCRIPT, "--input", folder / "corpus.txt"),
        *("--vocabulary", folder / "vocab.txt", "--output-dir", folder / output, *more),
    ]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.DEVNULL
    )


def wait_for(process, folder, pattern, count):
    """Waits until that many files are there, and returns the process's workers."""
    while len(list(folder.glob(pattern))) < count:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    tasks = pathlib.Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_workers_kills_and_beam_change_nothing(shared, tmp_path):
    """20 MB by 1, 2 and 5 workers; killed within the blocks and within the shards; by Beam."""
    text = shared("data/pretraining/en_state_union_1945_1962.txt").read_text(encoding="utf-8")
    (tmp_path / "corpus.txt").write_text("\n\n".join([text] * 27), encoding="utf-8")
    vocabulary = shared("data/vocab/bert-base-uncased/vocab.txt").read_bytes()
    (tmp_path / "vocab.txt").write_bytes(vocabulary)
    for workers in (1, 2, 5):
        process = start(tmp_path, f"{workers}", "--workers", f"{workers}", "--dev-documents", "40")
        assert process.wait() == 0

    killed = tmp_path / "killed"
    for pattern, count in (("blocks.unfinished/*.json", 2), ("examples-*.tfrecord", 1)):
        more = ["--resume"] if killed.exists() else []
        process = start(tmp_path, "killed", "--workers", "2", "--dev-documents", "40", *more)
        workers = wait_for(process, killed, pattern, count)
        process.kill()
        process.wait()
        assert not (killed / "manifest.json").exists()
        deadline = time.monotonic() + 30
        while any(pathlib.Path(f"/proc/{worker}").exists() for worker in workers):
            assert time.monotonic() < deadline, "workers outlive the run"
            time.sleep(0.1)
    assert start(tmp_path, "killed", "--dev-documents", "40", "--resume").wait() == 0

    outputs = ["2", "5", "killed"]
    if importlib.util.find_spec("apache_beam"):
        process = start(tmp_path, "beam", "--runner", "DirectRunner", "--dev-documents", "40")
        assert process.wait() == 0
        outputs.append("beam")
    expected = hashes(tmp_path / "1")
    assert len(expected) == 18
    for output in outputs:
        assert hashes(tmp_path / output) == expected, output
    if "beam" not in outputs:
        pytest.skip("all but Beam is compared: install apache-beam")
