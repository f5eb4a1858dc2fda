"""`python -m keras_bert`: the doctor's findings, and the pace of a checkpoint."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tyro

import keras_bert
from keras_bert import __main__ as command
from keras_bert import bench, doctor, machine, speed
from keras_bert.errors import InputError

BACKEND = keras.backend.backend()
TINY = keras_bert.BertConfig(
    vocabulary_size=32,
    num_layers=1,
    num_heads=1,
    hidden_dim=8,
    intermediate_dim=16,
    max_sequence_length=16,
)
# A short check of a small model, for these tests alone.
SHORT = 'doctor.SpeedCheck(size="tiny", batch_size=2, length=8, seconds=0.1)'


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A preset of an encoder alone."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    encoder = keras_bert.bert(TINY)
    preset = keras_bert.Preset(TINY, encoder, keras_bert.WordPiece(folder / "vocab.txt"), encoder)
    keras_bert.save(preset, folder / "preset")
    return str(folder / "preset")


def run(monkeypatch, *arguments):
    """The command in this process: its exit code."""
    monkeypatch.setattr(sys, "argv", ["__main__.py", *arguments])
    try:
        command.main()
    except SystemExit as exit:
        return exit.code
    return 0


def fake_versions(monkeypatch, **versions):
    """A fake: `importlib.metadata` tells these versions and knows nothing else."""
    known = {name.replace("_", "-"): version for name, version in versions.items()}

    def version(name):
        if name not in known:
            raise importlib.metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(importlib.metadata, "version", version)


def fake_modules(monkeypatch, *missing):
    """A fake: these modules aren't installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in missing else find(name, *a)
    )


def test_doctor_measures_and_prints_json():
    code = f"from keras_bert import doctor; doctor.main(doctor.Args(json=True), {SHORT})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=False
    )
    report = json.loads(result.stdout)
    assert result.returncode == bool(report["problems"]), result.stderr
    assert report["versions"]["keras_bert"] == keras_bert.__version__
    assert report["versions"]["keras"] == importlib.metadata.version("keras")
    assert report["backend"]["name"] == BACKEND
    assert report["cpu"]["cores"] >= 1
    pace = report["speed"]
    assert min(pace["matrix_gflops_per_second"].values()) > 0
    assert pace["tokens_per_second"] > 0
    assert 0 < pace["flops_utilisation"] < 1.5
    assert pace["compiled_by_xla"] is (BACKEND == "jax")
    assert "Measuring" in result.stderr  # a sign of life, away from the JSON
    lines = dict(doctor.described(report))
    assert lines["training step"] == "2 x 128, batch 2 x 8, float32"


def test_the_doctor_runs_where_the_package_can_not():
    for arguments, code in ((["doctor"], 1), (["bench", "--checkpoint", "none"], 2)):
        result = subprocess.run(
            [sys.executable, "-m", "keras_bert", *arguments],
            env=os.environ | {"KERAS_BACKEND": "theano"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == code
        assert "theano (from KERAS_BACKEND) isn't one that keras_bert trains on" in (
            result.stdout + result.stderr
        )
        assert "Traceback" not in result.stderr


def test_the_command_imports_nothing_heavy():
    code = """
import sys
sys.argv, sys.orig_argv = ["-m"], ["python", "-m", "keras_bert"]
import keras_bert.__main__, keras_bert.bench, keras_bert.doctor
assert not {"keras", "numpy", "tensorflow", "jax", "torch", "rich", "tyro"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"tensorflow": "2.20.0", "tensorflow_tpu": "2.20.0"}, "overwrite each other's files"),
        ({"tensorflow": "2.21.0", "tensorflow_text": "2.20.1"}, "'tensorflow-text==2.21.*'"),
        ({"keras": "3.14.1"}, "pip install -U 'keras>=3.15'"),
        ({"tensorflow_tpu": "2.20.0", "libtpu": "0.0.31"}, "'libtpu>=0.0.14,<0.0.31'"),
        ({"keras_bert": "0.89.0"}, "pip uninstall keras-bert keras3-bert"),
        ({"tensorflow": "2.21.0", "tf_keras": "2.21.0"}, "TF_USE_LEGACY_KERAS"),
    ],
    ids=["tensorflow-tpu", "tensorflow-text", "keras", "libtpu", "keras-bert", "tf-keras"],
)
def test_bad_pair(versions, expected, monkeypatch, capsys):
    fake_versions(monkeypatch, **versions)
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert run(monkeypatch, "doctor", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    (sentence,) = report["problems"]
    assert expected in sentence
    assert report["speed"] is None  # the process may not survive the import


def test_good_pairs():
    good = {"keras": "3.15.1", "tensorflow": "2.21.0", "tensorflow-text": "2.21.1"}
    tpu = {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.30", "tf-keras": "2.20.0"}
    beside = {"tensorflow": "2.21.0", "torch": "2.13.0+cu128", "jax": "0.10.2", "libtpu": "0.0.52"}
    for versions in (good, tpu, beside):
        assert doctor.package_problems(versions, {"TF_USE_LEGACY_KERAS": "0"}) == []


def test_backend_that_is_not_installed(monkeypatch, capsys):
    fake_modules(monkeypatch, "jax")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert run(monkeypatch, "doctor") == 1
    out = capsys.readouterr().out
    assert "The backend jax (from KERAS_BACKEND) isn't installed: set the environment" in out
    fake_modules(monkeypatch, *doctor.BACKENDS)
    (sentence,) = doctor.backend_problems("jax", "KERAS_BACKEND")
    assert "pip install 'keras3-bert[jax]'" in sentence


def test_where_the_backend_comes_from(tmp_path):
    home = {"KERAS_HOME": str(tmp_path)}
    assert doctor.chosen_backend(home) == ("tensorflow", "Keras's default")
    path = tmp_path / "keras.json"
    path.write_text('{"backend": "jax"}', encoding="utf-8")
    assert doctor.chosen_backend(home) == ("jax", str(path))
    assert doctor.chosen_backend({**home, "KERAS_BACKEND": "torch"}) == ("torch", "KERAS_BACKEND")


def test_backend_that_fails_is_reported(monkeypatch):
    def fail(*_):
        raise OSError("libcuda.so is missing\nat line 1")

    monkeypatch.setattr(doctor, "measured", fail)
    monkeypatch.setattr(doctor, "package_problems", lambda *_: [])
    (sentence,) = doctor.examine(doctor.SpeedCheck())["problems"]
    assert "fails with OSError: libcuda.so is missing. Install it" in sentence


def test_bench(checkpoint, monkeypatch, capsys):
    flags = ["--checkpoint", checkpoint, "--batch-size", "4", "--max-sequence-length", "8"]
    assert run(monkeypatch, "bench", *flags, "--seconds", "0.2") == 0
    lines = capsys.readouterr().out.split("\n")
    metrics = json.loads(lines[-2])
    assert lines[0].startswith("text_classifier, batch 4 x 8, float32, 1 x ")
    assert metrics["tokens_per_second"] == pytest.approx(8 * metrics["examples_per_second"], 0.01)
    assert metrics["matrix_gflops_per_second"] > 0.1 > metrics["flops_utilisation"] >= 0
    assert (metrics["data_wait"] is not None) == (BACKEND == "tensorflow")


def test_trial_is_the_command_with_another_batch(monkeypatch):
    """With a made-up process, which tells the flags that it was given."""

    def process(arguments, **_):
        assert arguments[:4] == [sys.executable, "-m", "keras_bert", "bench"]
        given = dataclasses.asdict(tyro.cli(bench.Args, args=arguments[4:]))
        out = "a line\n" + json.dumps(given | {"device": "", "seconds_per_update": 31}) + "\n"
        return subprocess.CompletedProcess(arguments, 0, out.encode(), b"")

    monkeypatch.setattr(subprocess, "run", process)
    args = bench.Args("a b", 64, 256, "mixed_bfloat16", "mirrored", seconds=1, find_batch=True)
    expected = dataclasses.replace(args, batch_size=8, seconds=0, find_batch=False)
    assert bench.trial(args, 8).items() >= dataclasses.asdict(expected).items()


def test_largest_batch_stays_within_memory(monkeypatch):
    """With made-up processes: 100 bytes each, and 10 a row."""
    args = bench.Args("a", batch_size=1)
    found = {"device": "", "seconds_per_update": 0.1}
    monkeypatch.setattr(
        bench, "trial", lambda _, size: {**found, "peak_memory_bytes": 100 + 10 * size}
    )
    monkeypatch.setattr(machine, "available_memory", lambda: 1000)
    # 64 rows would take 740 bytes, and 80 % are 800; 128 would take 1,380.
    assert bench.largest_batch(args)["largest_batch"] == 64
    monkeypatch.setattr(bench, "trial", lambda _, size: None if size > 8 else found | {
        "peak_memory_bytes": 0, "device": "NVIDIA L4"})  # fmt: skip
    assert bench.largest_batch(args) == {
        "largest_batch": 8,
        "stopped_by": "a batch of 16 runs out of memory",
    }
    slow = {"device": "", "seconds_per_update": 31, "peak_memory_bytes": 1}
    monkeypatch.setattr(bench, "trial", lambda *_: slow)
    assert bench.largest_batch(args) == {
        "largest_batch": 1,
        "stopped_by": "an update takes 31 seconds",
    }
    monkeypatch.setattr(bench, "trial", lambda *_: None)
    with pytest.raises(InputError, match="lower --batch-size"):
        bench.largest_batch(args)


@pytest.mark.parametrize(
    ("returncode", "stderr", "expected"),
    [
        (-9, "", None),
        (1, "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory", None),
        (2, "error: no such folder", InputError),
        (1, "TypeError: what?", RuntimeError),
    ],
)
def test_how_a_trial_ends(returncode, stderr, expected, monkeypatch):
    """With a made-up process."""
    process = subprocess.CompletedProcess([], returncode, b"", stderr.encode())
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: process)
    if expected is None:
        assert bench.trial(bench.Args("a"), 1) is None
        return
    with pytest.raises(expected, match=r"no such folder|what"):
        bench.trial(bench.Args("a"), 1)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "isn't a folder"),
        (["--batch-size", "0"], "--batch-size must be at least 1. Received: 0."),
        (["--seconds", "inf"], "--seconds must be at least 0. Received: inf."),
    ],
)
def test_bench_refuses(flags, expected, monkeypatch, capsys):
    assert run(monkeypatch, "bench", "--checkpoint", "nowhere", *flags) == 2
    sentence = capsys.readouterr().err.strip().split("\n")[-1]
    assert sentence.startswith("error: ")
    assert expected in sentence


def test_bench_refuses_what_is_too_long(checkpoint, monkeypatch, capsys):
    flags = ["--checkpoint", checkpoint, "--max-sequence-length", "17"]
    assert run(monkeypatch, "bench", *flags) == 2
    assert "ends at 16: give less" in capsys.readouterr().err


TASKS = keras_bert.tasks


@pytest.mark.parametrize(
    "build",
    [
        TASKS.pretraining,
        lambda encoder: TASKS.text_classifier(encoder, 3),
        lambda encoder: TASKS.text_classifier(encoder, 1),
        lambda encoder: TASKS.token_classifier(encoder, 4),
        lambda encoder: TASKS.token_classifier(encoder, 4, crf=True),
        TASKS.span_classifier,
        TASKS.multiple_choice,
    ],
    ids=[
        *("pretraining", "text_classifier", "regression"),
        *("token_classifier", "crf", "span_classifier", "multiple_choice"),
    ],
)
def test_every_task_can_be_trained(build):
    model = build(keras_bert.bert(TINY))
    model.compile("sgd", speed.losses(model))
    inputs, labels, weights = speed.made_up_batch(model, 32, 2, 8)
    loss = model.compute_loss(inputs, labels, model(inputs), weights)
    assert np.isfinite(keras.ops.convert_to_numpy(loss))
    work = speed.throughput(model, TINY, 2, 8, 1e9)
    texts = 2 * (2 if model.name == "multiple_choice" else 1)
    assert work.tokens == 8 * texts
    kernels = 2 * 8 * texts * (4 * 8**2 + 2 * 8 * 16)
    assert 3 * kernels < work.flops < 3 * 2 * kernels


def test_without_tyro(checkpoint, monkeypatch, capsys):
    fake_modules(monkeypatch, "tyro", "rich")
    fake_versions(monkeypatch, keras="3.0.0")
    assert run(monkeypatch, "doctor") == 1
    assert "not installed" in capsys.readouterr().out
    assert run(monkeypatch, "bench", "--checkpoint", checkpoint) == 2
    assert "pip install 'keras3-bert[recipes]'" in capsys.readouterr().err


def test_usage(monkeypatch, capsys):
    assert run(monkeypatch) == run(monkeypatch, "--help") == 0
    assert "usage: python -m keras_bert COMMAND" in capsys.readouterr().out
    assert run(monkeypatch, "docter") == 2
    assert "there's no command docter" in capsys.readouterr().err
    assert run(monkeypatch, "bench", "--help") == 0
    assert "--max-sequence-length" in capsys.readouterr().out


def test_memory():
    assert 0 < machine.peak_memory() < machine.total_memory()
    assert 0 < machine.available_memory() <= machine.total_memory()
