"""A run that is killed and resumed keeps its count, its history and its numbers."""

import io
import json
import math
import shutil
import sys

import keras
import numpy as np
import pytest

from keras_bert.errors import InputError
from keras_bert.training import callbacks, saving
from keras_bert.training.callbacks import Checkpoints, History, ProgressBar, latest, restore

UPDATES_PER_EPOCH = 4


class FallingRate(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1 / (1.0 + keras.ops.cast(step, "float32"))

    def get_config(self):
        return {}


def small_model(hidden_dim=5, optimizer=keras.optimizers.AdamW, steps_per_execution=1):
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(hidden_dim, activation="tanh", kernel_initializer="ones")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, kernel_initializer="zeros")(hidden))
    model.compile(
        optimizer(FallingRate()),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )
    return model


def data(rows=16):
    x = np.random.default_rng(1).normal(size=(rows, 3)).astype("float32")
    return x, (x.sum(axis=1) > 0).astype("int32")


def fit(model, *chosen, epochs=1, initial_epoch=0, validate=False, rest=None):
    x, y = data() if rest is None else rest
    model.fit(
        x,
        y,
        batch_size=4,
        epochs=epochs,
        initial_epoch=initial_epoch,
        shuffle=False,
        verbose=0,
        callbacks=list(chosen),
        validation_data=(x, y) if validate else None,
    )
    return model


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    fit(small_model(), Checkpoints(folder, every_updates=1))
    return latest(folder)


@pytest.fixture
def checkpoint(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "made" / saved.name)


class TestCheckpoints:
    def test_resumed_run_ends_with_the_same_bits(self, tmp_path):
        whole = fit(small_model(), epochs=3, validate=True)
        fit(small_model(), Checkpoints(tmp_path, 1), epochs=2, validate=True)

        resumed = small_model()
        assert restore(resumed, latest(tmp_path)) == 2 * UPDATES_PER_EPOCH
        assert float(resumed.optimizer.learning_rate) == pytest.approx(0.1 / 9)
        fit(resumed, Checkpoints(tmp_path, 1), epochs=3, initial_epoch=2, validate=True)

        assert names(tmp_path) == ["update-00000008", "update-00000012"]
        state = json.loads((latest(tmp_path) / "state.json").read_text(encoding="utf-8"))
        assert state == {"update": 12, "optimizer": "AdamW"}
        for ours, theirs in zip(resumed.get_weights(), whole.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        both = zip(resumed.optimizer.variables, whole.optimizer.variables, strict=True)
        for ours, theirs in both:
            np.testing.assert_array_equal(
                keras.ops.convert_to_numpy(ours), keras.ops.convert_to_numpy(theirs)
            )

    def test_saves_when_enough_updates_have_passed_and_at_the_end(self, tmp_path):
        fit(small_model(), Checkpoints(tmp_path, every_updates=6, keep=9), epochs=5)
        assert names(tmp_path) == ["update-00000008", "update-00000016", "update-00000020"]

    def test_keeps_the_newest(self, tmp_path):
        fit(small_model(), Checkpoints(tmp_path, every_updates=1, keep=1), epochs=3)
        assert names(tmp_path) == ["update-00000012"]
        assert names(tmp_path / "update-00000012") == [
            "complete",
            "model.weights.h5",
            "state.json",
        ]

    def test_ignores_and_removes_half_written_ones(self, tmp_path):
        (tmp_path / "update-00000099").mkdir()
        (tmp_path / "update-00000098.unfinished").mkdir()
        (tmp_path / "update-00000098.unfinished" / "complete").touch()
        (tmp_path / "update-notes").mkdir()
        assert latest(tmp_path) is None
        fit(small_model(), Checkpoints(tmp_path, 1))
        assert names(tmp_path) == ["update-00000004", "update-notes"]

    def test_killed_while_saving_leaves_the_one_before(self, tmp_path, monkeypatch):
        def killed(*_):
            raise KeyboardInterrupt

        model = fit(small_model(), Checkpoints(tmp_path, 1))
        monkeypatch.setattr(saving, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(model, Checkpoints(tmp_path, 1), epochs=2, initial_epoch=1)
        monkeypatch.undo()
        assert latest(tmp_path).name == "update-00000004"
        resumed = small_model()
        restore(resumed, latest(tmp_path))
        fit(resumed, Checkpoints(tmp_path, 1), epochs=2, initial_epoch=1)
        assert names(tmp_path) == ["update-00000004", "update-00000008"]

    def test_keeps_the_best_besides_the_newest(self, tmp_path):
        losses = iter([3.0, 1.0, 2.0, 1.5])

        class Told(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs):
                logs["val_score"] = next(losses)

        watched = {"keep": 1, "monitor": "val_score"}
        fit(small_model(), Told(), Checkpoints(tmp_path, 100, **watched), epochs=2)
        resumed = small_model()
        restore(resumed, latest(tmp_path))
        again = Checkpoints(tmp_path, 100, **watched)
        fit(resumed, Told(), again, epochs=4, initial_epoch=2)
        assert names(tmp_path) == ["best.json", "update-00000008", "update-00000016"]
        assert callbacks.best(tmp_path).name == "update-00000008"
        told = json.loads((tmp_path / "best.json").read_text(encoding="utf-8"))
        assert told == {"checkpoint": "update-00000008", "update": 8, "value": 1.0}

    def test_best_begins_anew_with_other_data(self, tmp_path):
        class Told(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs):
                logs["val_score"] = float(epoch)

        since = Checkpoints(tmp_path, 100, keep=1, monitor="val_score", since=4)
        fit(small_model(), Told(), since, epochs=3)
        assert callbacks.best(tmp_path).name == "update-00000008"

    @pytest.mark.parametrize("at", [1, 3])
    def test_saved_amid_an_epoch(self, tmp_path, at):
        """The epoch's metrics go on too, so that its row in the history is the whole epoch's."""
        whole = fit(small_model(), History(tmp_path / "whole.csv"), epochs=2)
        model = small_model()

        class Kill(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == at:
                    raise KeyboardInterrupt

        every = Checkpoints(tmp_path / "made", at, within_epochs=True)
        with pytest.raises(KeyboardInterrupt):
            fit(model, every, Kill(), epochs=2)
        resumed = small_model()
        x, y = data()
        assert restore(resumed, latest(tmp_path / "made"), (x[:4], y[:4])) % 4 == at
        history = History(tmp_path / "resumed.csv", seconds_before=100.0)
        every = Checkpoints(tmp_path / "made", 100, within_epochs=True)
        left = (x[4 * at :], y[4 * at :])
        fit(resumed, every, history, rest=left)
        fit(resumed, every, history, epochs=2, initial_epoch=1)
        rows, expected = (
            callbacks.read_history(tmp_path / f"{name}.csv") for name in ("resumed", "whole")
        )
        assert rows["seconds"][0] >= 100 > rows["seconds"][1]
        for name in ("epoch", "update", "learning_rate", "loss", "accuracy"):
            assert rows[name] == expected[name], name
        for ours, theirs in zip(resumed.get_weights(), whole.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)

    def test_never_saves_what_is_not_finite(self, tmp_path):
        model = small_model()
        model.layers[1].kernel.assign(np.full((3, 5), np.inf, "float32"))
        with pytest.raises(callbacks.NonFiniteError, match="at update 4"):
            fit(model, Checkpoints(tmp_path, 1))
        assert latest(tmp_path) is None

    def test_orders_by_number_not_by_letter(self, tmp_path):
        for name in ["update-99999999", "update-100000000"]:
            (tmp_path / name).mkdir()
            (tmp_path / name / "complete").touch()
        assert latest(tmp_path).name == "update-100000000"

    def test_refuses_a_folder_that_is_ahead_of_the_run(self, checkpoint):
        with pytest.raises(InputError, match="update-00000004 is ahead of this run"):
            fit(small_model(), Checkpoints(checkpoint.parent, 1))
        assert latest(checkpoint.parent) == checkpoint

    def test_no_folder_no_checkpoint(self, tmp_path):
        assert latest(tmp_path / "absent") is None

    @pytest.mark.parametrize("wrong", [{"every_updates": 0}, {"every_updates": 1, "keep": 0}])
    def test_arguments(self, tmp_path, wrong):
        with pytest.raises(ValueError, match=r"must be at least 1. Received"):
            Checkpoints(tmp_path, **wrong)


class TestRestore:
    def test_needs_a_compiled_model(self, checkpoint):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        with pytest.raises(ValueError, match="`model` must be compiled"):
            restore(model, checkpoint)

    @pytest.mark.parametrize("size", [0, 100, 2000])
    def test_truncated_weights(self, checkpoint, size):
        weights = checkpoint / "model.weights.h5"
        weights.write_bytes(weights.read_bytes()[:size])
        with pytest.raises(InputError, match=r"model.weights.h5 doesn't load"):
            restore(small_model(), checkpoint)

    @pytest.mark.parametrize("name", ["model.weights.h5", "state.json", "complete"])
    def test_missing_file(self, checkpoint, name):
        (checkpoint / name).unlink()
        with pytest.raises(InputError, match=name.removesuffix(".h5")):
            restore(small_model(), checkpoint)

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"update": "four", "optimizer": "AdamW"}'])
    def test_damaged_state(self, checkpoint, text):
        (checkpoint / "state.json").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=r"state.json is missing or damaged"):
            restore(small_model(), checkpoint)

    def test_state_of_another_update(self, checkpoint):
        state = {"update": 5, "optimizer": "AdamW"}
        (checkpoint / "state.json").write_text(json.dumps(state), encoding="utf-8")
        with pytest.raises(InputError, match=r"is of update 4, but state.json"):
            restore(small_model(), checkpoint)

    def test_another_model(self, checkpoint):
        with pytest.raises(InputError, match=r"model.weights.h5 doesn't load"):
            restore(small_model(hidden_dim=6), checkpoint)

    def test_another_optimizer(self, checkpoint):
        with pytest.raises(InputError, match="made with the optimizer AdamW"):
            restore(small_model(optimizer=keras.optimizers.Adam), checkpoint)

    def test_weights_without_an_optimizer(self, checkpoint):
        model = small_model()
        bare = keras.Model(model.inputs, model.outputs)
        bare.save_weights(checkpoint / "model.weights.h5", overwrite=True)
        with pytest.raises(InputError, match=r"model.weights.h5 doesn't load"):
            restore(small_model(), checkpoint)


class TestHistory:
    def test_one_row_an_epoch(self, tmp_path):
        path = tmp_path / "history.csv"
        fit(small_model(), History(path), epochs=2, validate=True)
        history = callbacks.read_history(path)
        assert list(history)[:4] == ["epoch", "update", "learning_rate", "seconds"]
        assert set(history) > {"loss", "accuracy", "val_loss", "val_accuracy"}
        assert history["epoch"] == [1, 2]
        assert history["update"] == [4, 8]
        assert history["learning_rate"] == pytest.approx([0.1 / 5, 0.1 / 9])
        assert path.read_text(encoding="utf-8").split("\n")[1].startswith("1,4,0.0")
        assert names(tmp_path) == ["history.csv"]

    def test_resumed_run_drops_the_rows_it_trains_again(self, tmp_path):
        path = tmp_path / "history.csv"
        fit(small_model(), Checkpoints(tmp_path / "made", 100), History(path), epochs=1)
        first = path.read_text(encoding="utf-8")
        going_on = fit(small_model(), History(path), epochs=3)
        assert path.read_text(encoding="utf-8") != first
        assert updates(path) == [4, 8, 12]

        resumed = small_model()
        restore(resumed, latest(tmp_path / "made"))
        fit(resumed, History(path), epochs=2, initial_epoch=1, validate=True)
        assert updates(path) == [4, 8]
        assert math.isnan(callbacks.read_history(path)["val_loss"][0])
        assert not math.isnan(callbacks.read_history(path)["val_loss"][1])
        assert going_on.optimizer.iterations > resumed.optimizer.iterations

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("", 1),
            ("a,b\n1,2\n", 1),
            ("epoch,update,loss\n1,4,2.5\n2,8\n", 3),
            ("epoch,update,loss\n1,4,many\n", 2),
        ],
    )
    def test_damaged_file(self, tmp_path, text, line):
        path = tmp_path / "history.csv"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=rf"history.csv, line {line}: "):
            callbacks.read_history(path)
        with pytest.raises(InputError, match=r"history.csv"):
            fit(small_model(), History(path))
        assert path.read_text(encoding="utf-8") == text

    def test_any_metric_name(self, tmp_path):
        history = History(tmp_path / "history.csv")
        history.set_model(small_model())
        history.on_train_begin()
        history.on_epoch_end(0, {'a,"b"': math.nan, "损失": math.inf})
        read = callbacks.read_history(history.path)
        assert math.isnan(read['a,"b"'][0])
        assert read["损失"] == [math.inf]


def updates(path):
    return callbacks.read_history(path)["update"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


class TestProgressBar:
    def test_plain_lines_where_there_is_no_terminal(self, capsys):
        fit(small_model(), ProgressBar(8, "pretrain"), epochs=2, validate=True)
        first, second = capsys.readouterr().out.rstrip("\n").split("\n")
        assert first.startswith("pretrain  epoch 1  update 4/8  ")
        assert second.startswith("pretrain  epoch 2  update 8/8  ")
        for name in ["  loss 0.", "  accuracy ", "  val_loss 0."]:
            assert name in second

    @pytest.mark.parametrize("steps_per_execution", [1, 3])
    def test_live_bar_spans_the_epochs(self, monkeypatch, steps_per_execution):
        if steps_per_execution > 1 and keras.backend.backend() == "torch":
            pytest.skip("Keras has steps_per_execution under TensorFlow and JAX only")
        terminal = as_terminal(monkeypatch)
        seen = []

        class Watch(ProgressBar):
            def _show(self, update, metrics):
                seen.append(update)
                super()._show(update, metrics)

        model = small_model(steps_per_execution=steps_per_execution)
        fit(model, Watch(12, "[1/2]"), epochs=3, validate=True)
        text = terminal.getvalue()
        assert "[1/2]" in text
        assert "12/12" in text
        assert "val_loss" in text
        assert seen[-1] == 12
        assert seen.count(8) >= 1
        assert text.endswith("\x1b[?25h")  # The cursor is back.

    def test_resumed_run_begins_where_it_was(self, monkeypatch, checkpoint):
        terminal = as_terminal(monkeypatch)
        model = small_model()
        restore(model, checkpoint)
        fit(model, ProgressBar(8), epochs=2, initial_epoch=1)
        text = terminal.getvalue()
        assert "4/8" in text
        assert "0/8" not in text
        assert "8/8" in text

    def test_pace(self, monkeypatch, capsys):
        throughput = callbacks.Throughput(tokens=1000, flops=2.0, peak=1e15)
        fit(small_model(), ProgressBar(8, throughput=throughput), epochs=2)
        first, second = capsys.readouterr().out.rstrip("\n").split("\n")
        assert " tokens/s  0% of peak  0:00:0" in first
        assert first.endswith(" left")
        assert not second.endswith(" left")
        terminal = as_terminal(monkeypatch)
        fit(small_model(), ProgressBar(8, throughput=throughput), epochs=2)
        assert " tokens/s  0% of peak" in terminal.getvalue()

    def test_shows_validation(self, monkeypatch):
        terminal = as_terminal(monkeypatch)
        bar = ProgressBar(8)
        bar.set_model(small_model())
        bar.on_train_begin()
        bar.on_test_batch_end(6, {"loss": 0.25})
        bar.on_train_end()
        assert "validation: batch 7  loss 0.25" in terminal.getvalue()

    def test_alone_in_evaluate(self, monkeypatch):
        as_terminal(monkeypatch)
        model = fit(small_model())
        model.evaluate(np.ones((4, 3)), np.ones(4), callbacks=[ProgressBar(8)], verbose=0)

    def test_arguments(self):
        with pytest.raises(ValueError, match=r"`total_updates` must be at least 1. Received"):
            ProgressBar(0)


def as_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return terminal
