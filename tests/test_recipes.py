"""The recipes as a user runs them: the whole path in small, and every way to be refused."""

from __future__ import annotations

import importlib.util
import inspect
import json
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from conftest import TESTS

import keras_bert
from keras_bert.errors import InputError

RECIPES = TESTS.parent / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.py"))
WORDS = ["the", "a", "red", "green", "old", "new", "dog", "cat", "house", "tree", "sees", "finds"]


def load_recipe(name):
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run(recipe_name, **arguments):
    recipe = load_recipe(recipe_name)
    paths = {name: str(v) for name, v in arguments.items() if isinstance(v, pathlib.Path)}
    return recipe.main(recipe.Args(**arguments | paths))


def sentences(count, words=WORDS):
    rng = np.random.default_rng(0)
    lines = (" ".join(rng.choice(words, rng.integers(4, 9))) for _ in range(count))
    return [f"{line.capitalize()}." for line in lines]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Text, a vocabulary and records of it, made once by the recipes."""
    folder = tmp_path_factory.mktemp("work")
    lines = sentences(240)
    documents = ["\n".join(lines[i : i + 20]) for i in range(0, 240, 20)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    letters = [f"{mark}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz." for mark in ("", "##")]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *WORDS[:1], *WORDS[2:]]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    run(
        "create_pretraining_data",
        input=(str(folder / "text.txt"),),
        vocabulary=folder / "vocab.txt",
        output_dir=folder / "records",
        max_sequence_length=32,
        dev_documents=(3,),
    )
    rows = [
        f"{label}\t{text}"
        for texts in zip(sentences(32, WORDS[:6]), sentences(32, WORDS[6:]))
        for label, text in zip("ab", texts)
    ]
    (folder / "train.tsv").write_text("\n".join(["label\ttext", *rows]), encoding="utf-8")
    (folder / "dev.tsv").write_text("\n".join(rows[:16]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def pretrained(work):
    run("pretrain", **pretraining(work, output_dir=work / "run"))
    return work / "run"


def pretraining(work, **changes):
    return {
        "data": (str(work / "records"),),
        "dev_data": (str(work / "records" / "dev"),),
        "deterministic": False,  # can't be undone in this process
        "size": "tiny",
        "steps": 4,
        "evaluate_every": 2,
        "batch_size": 4,
        "learning_rate": 1e-3,
    } | changes


def finetuning(work, **changes):
    return {
        "checkpoint": work / "run" / "preset",
        "train_file": work / "train.tsv",
        "dev_file": work / "dev.tsv",
        "max_sequence_length": 32,
        "learning_rate": 1e-3,
        "epochs": 4,
        "batch_size": 8,
    } | changes


def test_train_vocabulary(work, tmp_path):
    pytest.importorskip("tensorflow_text")
    metrics = run(
        "train_vocabulary",
        input=(str(work / "text.txt"),),
        vocabulary_size=60,
        output=tmp_path / "vocab.txt",
    )
    tokenizer = keras_bert.WordPiece(tmp_path / "vocab.txt")
    assert metrics["tokens"] == tokenizer.vocabulary_size <= 60
    assert tokenizer.unk_id not in tokenizer(" ".join(WORDS))


def test_pretrain_leaves_a_whole_run(pretrained):
    names = {path.name for path in pretrained.iterdir()}
    assert names >= {
        "args.json",
        "manifest.json",
        "metrics.json",
        "history.csv",
        "report.html",
        "logs",
        "checkpoints",
        "preset",
    }
    assert keras_bert.load(pretrained / "preset").model.name == "pretraining"
    page = (pretrained / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "Masked examples" in page


@pytest.fixture(scope="module")
def without_dropout(work):
    """A preset to pretrain whose updates draw no random numbers."""
    tokenizer = keras_bert.WordPiece(work / "vocab.txt")
    config = keras_bert.BertConfig.of_size(
        "tiny",
        vocabulary_size=tokenizer.vocabulary_size,
        num_layers=1,
        dropout=0.0,
        attention_dropout=0.0,
    )
    encoder = keras_bert.bert(config)
    folder = work / "without_dropout"
    keras_bert.save(keras_bert.Preset(config, encoder, tokenizer, encoder), folder)
    return folder


def test_resumed_run_ends_where_the_whole_one_does(work, without_dropout, tmp_path):
    """Stopped after 3 of 5 updates and resumed: the order, the masks and the rate go on."""
    arguments = pretraining(
        work,
        checkpoint=without_dropout,
        steps=5,
        evaluate_every=3,
        warmup_ratio=0.4,
        output_dir=tmp_path / "run",
    )
    run("pretrain", **arguments)
    expected = keras_bert.load(tmp_path / "run" / "preset").model.get_weights()
    history = (tmp_path / "run" / "history.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[:2] for line in history[1:]] == [["1", "3"], ["2", "5"]]

    shutil.rmtree(tmp_path / "run" / "checkpoints" / "update-00000005")
    shutil.rmtree(tmp_path / "run" / "preset")
    run("pretrain", **arguments, resume=True)
    again = keras_bert.load(tmp_path / "run" / "preset").model.get_weights()
    for ours, theirs in zip(again, expected):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    assert len((tmp_path / "run" / "history.csv").read_text(encoding="utf-8").splitlines()) == 3


def test_resuming_under_other_settings_is_refused(work, pretrained):
    before = (pretrained / "args.json").read_bytes()
    with pytest.raises(InputError, match=r"was begun with --steps 4. Received: 6"):
        run("pretrain", **pretraining(work, output_dir=pretrained, steps=6), resume=True)
    assert (pretrained / "args.json").read_bytes() == before
    # The same command changes nothing in a run that's over.
    metrics = run("pretrain", **pretraining(work, output_dir=pretrained), resume=True)
    assert metrics["train_seconds"] > 0
    assert metrics["examples_per_second"] > 0


def test_pretrain_goes_on_from_a_preset(work, pretrained, tmp_path):
    metrics = run(
        "pretrain",
        **pretraining(work, checkpoint=pretrained / "preset", output_dir=tmp_path / "run"),
    )
    assert metrics["masked_lm_loss"] > 0


def test_finetune_and_export(work, pretrained, tmp_path, monkeypatch):
    metrics = run("finetune_classifier", **finetuning(work, output_dir=tmp_path / "run"))
    assert metrics["accuracy"] == 1.0
    preset = keras_bert.load(tmp_path / "run" / "preset")
    assert preset.labels == ("a", "b")
    assert "<svg" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    if keras.backend.backend() != "tensorflow":
        with pytest.raises(InputError, match="KERAS_BACKEND=tensorflow"):
            run("export", checkpoint=tmp_path / "run" / "preset", output_dir=tmp_path / "export")
        assert not (tmp_path / "export").exists()
        return
    run("export", checkpoint=tmp_path / "run" / "preset", output_dir=tmp_path / "export")
    assert (tmp_path / "export" / "1" / "saved_model.pb").exists()
    # Of what was pretrained only the files are looked at: its check takes another process.
    monkeypatch.setattr("keras_bert.export.saved_model.check", lambda *_: None)
    arguments = {"checkpoint": pretrained / "preset", "output_dir": tmp_path / "mlm"}
    keras_bert.export_saved_model(keras_bert.load(pretrained / "preset"), tmp_path / "mlm")
    metrics = run("export", **arguments)
    assert metrics["saved_model"] == str(tmp_path / "mlm" / "2")
    assert sorted(path.name for path in (tmp_path / "mlm").glob("[0-9]*")) == ["1", "2"]
    run("export", **arguments, overwrite=True)
    assert sorted(path.name for path in (tmp_path / "mlm").iterdir()) == ["3", "args.json"]
    assert (tmp_path / "mlm" / "3" / "saved_model.pb").exists()


def test_convert_there_and_back(pretrained, tmp_path):
    formats = ["huggingface", "google", "preset"]
    source = pretrained / "preset"
    for name in formats:
        metrics = run("convert", checkpoint=source, format=name, output_dir=tmp_path / name)
        assert metrics["max_difference"] == 0
        assert metrics["tensors_read"] == metrics["weights_assigned"] > 0
        source = tmp_path / name
    first = keras_bert.load(pretrained / "preset").model.get_weights()
    for ours, theirs in zip(keras_bert.load(source).model.get_weights(), first):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(InputError, match="isn't empty"):
        run("convert", checkpoint=source, format="google", output_dir=tmp_path / "google")
    with pytest.raises(InputError, match="must be another folder"):
        run("convert", checkpoint=source, format="preset", output_dir=source, overwrite=True)


def refused(capsys, name, output_dir, **arguments):
    """Runs a recipe that must refuse its input; returns the sentence."""
    with pytest.raises((InputError, FileNotFoundError)) as caught:
        run(name, output_dir=output_dir, **arguments)
    assert not pathlib.Path(output_dir).exists() or list(pathlib.Path(output_dir).iterdir()) == [
        pathlib.Path(output_dir) / "mine.txt"
    ]
    return str(caught.value)


def test_pretrain_refuses(work, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(work / "records", other)
    manifest = json.loads((other / "manifest.json").read_text(encoding="utf-8"))
    manifest["tokenizer"]["vocabulary_hash"] = "0" * 64
    (other / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")

    def sentence(**changes):
        return refused(capsys, "pretrain", tmp_path / "run", **pretraining(work, **changes))

    assert "vocabulary" in sentence(dev_data=(str(other),))
    assert "vocabulary" in sentence(data=(str(other),), dev_data=())
    assert "nowhere" in sentence(data=(str(tmp_path / "nowhere"),))
    assert "--evaluate-every at least 0" in sentence(evaluate_every=-2)
    assert "--seed" in sentence(seed=2**32)
    shutil.rmtree(other)
    shutil.copytree(work / "records", other)
    shard = other / "examples-00000-of-00008.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-3])
    assert "examples-00000-of-00008.tfrecord has" in sentence(data=(str(other),))
    assert "--learning-rate" in sentence(learning_rate=float("nan"))
    assert "isn't a checkpoint" in sentence(checkpoint=tmp_path)
    assert "row_length is 16: give at least 32" in sentence(row_length=16)
    assert "--row-length must be at least 0" in sentence(row_length=-1)


def test_position_table_that_is_too_short(work, tmp_path, capsys):
    tokenizer = keras_bert.WordPiece(work / "vocab.txt")
    size = tokenizer.vocabulary_size
    config = keras_bert.BertConfig.of_size(
        "tiny", vocabulary_size=size, num_layers=1, max_sequence_length=16
    )
    encoder = keras_bert.bert(config)
    keras_bert.save(keras_bert.Preset(config, encoder, tokenizer, encoder), tmp_path / "preset")
    sentence = refused(
        capsys,
        "pretrain",
        tmp_path / "run",
        **pretraining(work, checkpoint=tmp_path / "preset"),
    )
    assert "max_sequence_length is 32" in sentence
    sentence = refused(
        capsys,
        "finetune_classifier",
        tmp_path / "run",
        **finetuning(work, checkpoint=tmp_path / "preset"),
    )
    assert "--max-sequence-length is 32" in sentence


def test_finetune_refuses(work, pretrained, tmp_path, capsys):
    bad = tmp_path / "bad.tsv"

    def sentence(text, **changes):
        bad.write_text(text, encoding="utf-8")
        return refused(
            capsys,
            "finetune_classifier",
            tmp_path / "run",
            **finetuning(work, train_file=bad) | changes,
        )

    assert "bad.tsv, line 2" in sentence("a\tfine\nno tab here\n")
    assert "bad.tsv, line 2: the label is empty" in sentence("a\tfine\n\ttext\n")
    assert "holds no rows" in sentence("label\ttext\n")
    assert "one class only" in sentence("a\tfine\n")
    assert "--learning-rate" in sentence("a\tfine\n", learning_rate=float("nan"))
    assert "dev.tsv, line 2: the label 'b'" in sentence("a\tfine\nc\tfine\n")
    assert "bad.tsv, line 1" in sentence("word\tlabel\nfine\ta\n")
    assert "at least 3" in sentence("a\tfine\nb\tbad\n", max_sequence_length=2)
    assert "nowhere.tsv" in sentence("a\tfine\n", dev_file=tmp_path / "nowhere.tsv")


@pytest.mark.parametrize("name", ["pretrain", "finetune_classifier", "export"])
def test_folder_in_use(work, pretrained, tmp_path, capsys, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.txt").write_text("mine", encoding="utf-8")
    arguments = {
        "pretrain": pretraining(work),
        "finetune_classifier": finetuning(work),
        "export": {"checkpoint": work / "run" / "preset"},
    }[name]
    sentence = refused(capsys, name, tmp_path / "mine", **arguments)
    assert "isn't empty" in sentence
    assert "--overwrite" in sentence
    sentence = refused(capsys, name, tmp_path / "mine", **arguments, overwrite=True)
    assert "no recipe made it" in sentence


def test_exit_code_and_one_sentence(tmp_path):
    command = [
        *(sys.executable, str(RECIPES / "pretrain.py"), "--data", str(tmp_path / "nowhere")),
        *("--output-dir", str(tmp_path / "run")),
    ]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", NAMES)
def test_help_explains_every_flag(name, capsys):
    import tyro

    arguments = load_recipe(name).Args
    with pytest.raises(SystemExit) as ended:
        tyro.cli(arguments, args=["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    source = (RECIPES / f"{name}.py").read_text(encoding="utf-8")
    source += "".join(inspect.getsource(each) for each in arguments.__mro__[1:-1])
    for field in arguments.__dataclass_fields__:
        assert f"--{field.replace('_', '-')}" in text
        declaration = source.index(f"    {field}: ")
        assert source[declaration:].split("\n")[1].startswith('    """'), field


def test_help_topics_make_eight_classes():
    quickstart = load_recipe("quickstart")
    documents = quickstart.help_topics()
    train, dev = quickstart.labelled_sentences(documents, seed=0)
    assert len({label for label, _ in train + dev}) == 8
    assert 0.15 < len(dev) / len(train + dev) < 0.25
    assert not {text for _, text in train} & {text for _, text in dev}
    text = quickstart.corpus(documents, {sentence for _, sentence in dev})
    assert not {sentence for _, sentence in dev} & set(text.split("\n"))
