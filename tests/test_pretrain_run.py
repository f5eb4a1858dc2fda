"""The pretraining recipe's runs: phases, stopping and going on, and losses that break."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
from conftest import TESTS
from pretraining_records import (
    command,
    load_recipe,
    make_data,
    rows,
    start,
    weights,
    write_records,
)

import keras_bert
from keras_bert.errors import InputError
from keras_bert.training import callbacks

USUAL = {
    "size": "tiny",
    "batch_size": 4,
    "learning_rate": 1e-3,
    "warmup_ratio": 0.1,
    "deterministic": False,  # it can't be taken back in this process
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def run(output_dir, **arguments):
    recipe = load_recipe()
    return recipe.main(recipe.Args(output_dir=str(output_dir), **{**USUAL, **arguments}))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run of both phases that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    metrics = run(folder, **data, steps=10, evaluate_every=4)
    return folder, metrics


def test_two_phases_are_one_run(whole):
    folder, metrics = whole
    history = callbacks.read_history(folder / "history.csv")
    # Updates 1 to 6 at length 16, 7 to 10 at 24; an epoch never spans both.
    assert history["update"] == [4, 6, 10]
    assert history["epoch"] == [1, 2, 3]
    # Warm-up of one update, then one line to 0 over both phases.
    np.testing.assert_allclose(history["learning_rate"], [1e-3 * 6 / 9, 1e-3 * 4 / 9, 0], rtol=1e-6)
    assert min(history["tokens_per_second"]) > 0
    assert all(0 <= share <= 1 for share in history["data_wait"])
    assert metrics["masked_lm_loss"] == pytest.approx(history["val_masked_lm_loss"][-1], abs=1e-3)
    page = (folder / "report.html").read_text(encoding="utf-8")
    for title in ("Learning rate", "Throughput", "Waiting for data", "Masked examples"):
        assert title in page
    # The best of the second phase: losses at another length don't compare.
    best = callbacks.best(folder / "checkpoints")
    assert best.name == "update-00000010"


@pytest.mark.parametrize(
    "at", [pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow), 8]
)
def test_sigterm_saves_and_the_same_command_goes_on(data, whole, tmp_path, monkeypatch, capsys, at):
    """Amid an epoch, at an epoch's end, amid the second phase: weights and history are the same."""

    class Terminated(callbacks.StopAtNonFinite):
        def on_train_batch_begin(self, batch, logs=None):
            if self._epoch_start + batch == at:
                signal.raise_signal(signal.SIGTERM)

    arguments = {**data, "steps": 10, "evaluate_every": 4, "resume": True}
    handler = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patched:
        patched.setattr(callbacks, "StopAtNonFinite", Terminated)
        with pytest.raises(SystemExit) as ended:
            run(tmp_path / "run", **arguments)
    assert ended.value.code == 0
    assert f"Stopped at update {at} of 10. The same command" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == handler
    assert callbacks.latest(tmp_path / "run" / "checkpoints").name == f"update-{at:08d}"

    metrics = run(tmp_path / "run", **arguments)
    ours, theirs = weights(tmp_path / "run"), weights(whole[0])
    for name, weight in ours.items():
        np.testing.assert_array_equal(weight, theirs[name], err_msg=name)
    np.testing.assert_equal(rows(tmp_path / "run"), rows(whole[0]))
    assert metrics["masked_lm_loss"] == whole[1]["masked_lm_loss"]


def test_loss_that_is_not_finite(tmp_path):
    """One example is in segment 1, whose vector overflows in the layer norm: it's named."""
    folder = write_records(tmp_path / "records", 16, count=40, one_pair=38)
    tokenizer = keras_bert.WordPiece(f"{folder}/vocab.txt")
    config = keras_bert.BertConfig.of_size(
        "tiny", vocabulary_size=tokenizer.vocabulary_size, num_layers=1
    )
    encoder = keras_bert.bert(config)
    table = encoder.get_layer("segment_embedding").embeddings
    values = keras.ops.convert_to_numpy(table).copy()
    values[1] = 3e38
    table.assign(values)
    keras_bert.save(keras_bert.Preset(config, encoder, tokenizer, encoder), tmp_path / "preset")

    arguments = {"data": (folder,), "checkpoint": str(tmp_path / "preset"), "save_every": 2}
    with pytest.raises(SystemExit) as ended:
        run(tmp_path / "run", **arguments, steps=20, evaluate_every=20)
    sentence = ended.value.code
    checkpoints = tmp_path / "run" / "checkpoints"
    inputs, _, _ = callbacks.load_batch(checkpoints / "non-finite" / "batch.npz")
    [row] = np.flatnonzero((inputs["segment_ids"] == 1).any(axis=1))
    assert f"the output of embedding_norm is the first not finite, in row {row}" in sentence
    update = int(sentence.split("At update ")[1].split(":")[0])
    # What came before is kept, and none of it is broken.
    good = callbacks.latest(checkpoints)
    assert update > 2
    assert int(good.name[-8:]) < update
    assert not list(checkpoints.glob("*.unfinished"))
    assert not (tmp_path / "run" / "preset").exists()

    # The batch and the weights before it break again.
    recipe = load_recipe()
    args = recipe.Args(output_dir="", **{**USUAL, **arguments, "steps": 20})
    parts = recipe.pretraining.read_parts(args, 20, 20)
    _, model = recipe.build(args, 20, parts[0], keras_bert.training.strategy())
    assert callbacks.restore(model, checkpoints / "non-finite") == update - 1
    assert callbacks.first_layer(model, inputs) == ("embedding_norm", [row])
    inputs["segment_ids"][row] = 0
    assert callbacks.first_layer(model, inputs) == ("", [])


def test_smoke_with_packed_rows_and_other_masks(data, tmp_path):
    one_phase = {"data": data["data"][:1], "dev_data": data["dev_data"][:1]}
    metrics = run(tmp_path / "run", **one_phase, smoke=True, masking="span", row_length=40)
    assert callbacks.read_history(tmp_path / "run" / "history.csv")["update"] == [2]
    assert metrics["masked_lm_loss"] > 0
    # What is saved takes one example a row.
    model = keras_bert.load(tmp_path / "run" / "preset").model
    assert "sequence_starts" not in model.input


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="Keras has it for the others only")
def test_several_updates_a_call(data, whole, tmp_path):
    """Updates in calls of 2, and an odd rest: the numbers of single updates."""
    one_phase = {"data": data["data"][:1], "steps": 5, "evaluate_every": 4}
    run(tmp_path / "one", **one_phase)
    run(tmp_path / "two", **one_phase, steps_per_execution=2)
    history = callbacks.read_history(tmp_path / "two" / "history.csv")
    assert history["update"] == [4, 5]
    ours, theirs = weights(tmp_path / "two"), weights(tmp_path / "one")
    for name, weight in ours.items():
        np.testing.assert_allclose(weight, theirs[name], rtol=0, atol=1e-6, err_msg=name)
    with pytest.raises(InputError, match="multiple of --steps-per-execution"):
        run(tmp_path / "no", **one_phase, steps_per_execution=3)


def test_phases_that_are_refused(data, tmp_path):
    def sentence(**changes):
        with pytest.raises(InputError) as caught:
            run(tmp_path / "run", **{**data, "steps": 10, **changes})
        assert not (tmp_path / "run").exists()
        return str(caught.value)

    assert "add a folder made with --max-sequence-length 32" in sentence(phases="16:0.5,32:0.5")
    assert "has no share" in sentence(phases="16:1").replace("\n", " ")
    assert "add up to 1" in sentence(phases="16:0.5,24:0.4")
    assert "each length once" in sentence(phases="16:0.5,16:0.5")
    assert "such as 128:0.9" in sentence(phases="16=1")
    assert "say which share" in sentence(phases="")
    assert "gets none of the 10 updates" in sentence(phases="16:0.99,24:0.01")
    assert "two folders" in sentence(data=data["data"][:1] * 2)
    assert "--dev-data has no folder" in sentence(dev_data=data["dev_data"][:1])


def test_records_that_cannot_be_read(tmp_path):
    """Found in training, which no check beforehand reads as far as: one sentence, exit code 2."""
    folder = write_records(tmp_path / "en16", 16)
    [shard] = (tmp_path / "en16").glob("*.tfrecord")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(bytes(content))
    with pytest.raises(InputError, match=rf"{shard.name} is damaged: copy it again"):
        run(tmp_path / "run", data=(folder,), steps=2)

    write_records(tmp_path / "ours", 16, one_pair=0)
    manifest = tmp_path / "ours" / "manifest.json"
    settings = json.loads(manifest.read_text(encoding="utf-8"))
    settings["tokenizer"] |= {"vocabulary_size": 20}
    manifest.write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(InputError, match=r"ours: token_ids of a record must be in \[0, 20\): make"):
        run(tmp_path / "other", data=(str(tmp_path / "ours"),), steps=2)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a strategy of TensorFlow")
def test_goes_on_with_other_replicas(data, tmp_path):
    """Begun on 2 replicas and ended on 4: the weights of 4 throughout, to 1e-6."""
    folder = tmp_path / "preset"
    tokenizer = keras_bert.WordPiece(f"{data['data'][0]}/vocab.txt")
    config = keras_bert.BertConfig.of_size(
        "tiny", vocabulary_size=tokenizer.vocabulary_size, dropout=0.0, attention_dropout=0.0
    )  # what dropout draws depends on the replica
    encoder = keras_bert.bert(config)
    keras_bert.save(keras_bert.Preset(config, encoder, tokenizer, encoder), folder)
    settings = {"data": data["data"], "phases": data["phases"], "checkpoint": folder, "steps": 8}
    settings |= {"strategy": "mirrored", "batch_size": 8, "save_every": 2, "evaluate_every": 5}

    def train(replicas, run, kill_at=None):
        words = command(run, "--resume", **settings)[2:]
        child = [sys.executable, str(TESTS / "pretrain_replicas_run.py"), str(replicas), *words]
        process = start(child, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while kill_at and not (run / "checkpoints" / f"update-{kill_at:08d}").exists():
            assert process.poll() is None, process.stderr.read()
        if kill_at:
            process.kill()
        errors = process.communicate()[1]
        assert kill_at or process.returncode == 0, errors

    train(4, tmp_path / "four")
    train(2, tmp_path / "both", kill_at=4)
    train(4, tmp_path / "both")
    ours, theirs = weights(tmp_path / "both"), weights(tmp_path / "four")
    for name, weight in ours.items():
        np.testing.assert_allclose(weight, theirs[name], rtol=0, atol=1e-6, err_msg=name)


def test_defaults_are_the_papers():
    """Devlin et al., 2018, appendix A.2."""
    defaults = {f.name: f.default for f in dataclasses.fields(load_recipe().Args)}
    assert defaults["steps"] == 1_000_000
    assert defaults["batch_size"] == 256
    assert defaults["learning_rate"] == 1e-4
    assert defaults["warmup_ratio"] * defaults["steps"] == 10_000
    assert defaults["weight_decay"] == 0.01
    assert (defaults["size"], defaults["masking"]) == ("base", "token")
