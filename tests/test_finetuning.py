"""What the fine-tuning recipes share: the best epoch, seeds, the search, frozen layers, files."""

import dataclasses
import json
import math

import keras
import numpy as np
import pytest

import keras_bert
from keras_bert import finetuning
from keras_bert.errors import InputError

LETTERS = [f"{mark}{letter}" for letter in "abcdefgh" for mark in ("", "##")]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args(finetuning.Args):
    checkpoint: str = "base"
    train_file: str = "train.tsv"
    dev_file: str = "dev.tsv"
    output_dir: str = ""
    max_sequence_length: int = 8
    batch_size: int = 4
    epochs: int = 2
    learning_rate: float = 1e-3


@pytest.fixture(scope="module")
def base():
    keras.utils.set_random_seed(0)
    config = keras_bert.BertConfig(
        vocabulary_size=len(VOCABULARY), num_layers=2, num_heads=2, hidden_dim=8,
        intermediate_dim=16, max_sequence_length=8,
    )  # fmt: skip
    encoder = keras_bert.bert(config)
    return keras_bert.Preset(config, encoder, keras_bert.WordPiece(VOCABULARY), encoder)


class Batches:
    """Eight rows in batches: the smallest thing that `fit` and `len` take."""

    def __init__(self, args):
        rng = np.random.default_rng(0)
        self.token_ids = rng.integers(5, len(VOCABULARY), (8, 8)).astype("int32")
        self.size = args.batch_size

    def __len__(self):
        return math.ceil(8 / self.size)

    def dataset(self):
        return [
            ({"token_ids": self.token_ids[i : i + self.size]}, np.arange(8)[i : i + self.size] % 2)
            for i in range(0, 8, self.size)
        ]


class Rows(keras.utils.PyDataset):
    def __init__(self, args):
        super().__init__()
        self.batches = Batches(args).dataset()

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        inputs, label = self.batches[index]
        return inputs, {"label": label}, {"label": np.ones(len(label), "float32")}


def task(base, **changes):
    """A task whose dev score is the share of class 1 among the predictions."""
    token_ids = Batches(Args()).token_ids

    def build(args):
        encoder = finetuning.start_encoder(args, base)
        model = keras_bert.tasks.text_classifier(encoder, 2)
        return dataclasses.replace(base, encoder=encoder, model=model), model

    def score(preset):
        logits = keras.ops.convert_to_numpy(preset.model({"token_ids": token_ids})["label"])
        return {"accuracy": float((logits.argmax(-1) == 1).mean()), "loss": float(logits.sum())}

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = finetuning.Task(build, Rows, 8, loss, score, "accuracy")
    return dataclasses.replace(found, **changes)


def values(weight):
    return keras.ops.convert_to_numpy(weight.value)


def finetune(args, task, folder):
    return finetuning.finetune(args, task, keras_bert.training.strategy(), folder)


def test_best_epoch_comes_back(base, tmp_path):
    """Weights and scores are those of the epoch with the best score; NaN is the worst.

    Frozen layers stay as they are.
    """
    kept = []

    def score(preset):
        kept.append(preset.model.get_weights())
        return {"accuracy": [math.nan, 0.5, 0.75, 0.75, 0.25][len(kept) - 1]}

    run, metrics = finetune(Args(epochs=5, freeze_layers=1), task(base, score=score), tmp_path)
    assert (run.best_epoch, metrics["best_epoch"], metrics["accuracy"]) == (3, 3, 0.75)
    for ours, theirs in zip(run.preset.model.get_weights(), kept[2]):
        np.testing.assert_array_equal(ours, theirs)
    assert not np.array_equal(kept[2][-1], kept[4][-1])
    before = {weight.path: values(weight) for weight in base.encoder.weights}
    frozen = ("token_", "position_", "segment_", "embedding_", "block_0/")
    for weight in run.preset.encoder.weights:
        same = np.array_equal(values(weight), before[weight.path])
        assert same == weight.path.startswith(frozen), weight.path
    history = (tmp_path / "history.csv").read_text(encoding="utf-8")
    assert "val_accuracy" in history.split("\n")[0]
    assert "seeds" not in metrics


@pytest.mark.parametrize(
    ("scores", "best", "stopped"),
    [
        ([0.2, 0.6, 0.5, 0.6, 0.9], 2, 4),
        ([math.nan, 0.1, math.nan, math.nan, 0.2], 2, 4),
        ([0.1, 0.2, 0.3], 3, 9),
    ],
)
def test_early_stop(scores, best, stopped):
    """After two epochs in a row that are no better."""
    given = iter(scores)
    callback = finetuning.BestEpoch(lambda: {"f1": next(given)}, "f1", patience=2)
    callback.set_model(keras.Sequential([keras.layers.Dense(1)]))
    callback.model.stop_training = False
    for epoch in range(len(scores)):
        callback.on_epoch_end(epoch, {})
        if callback.model.stop_training:
            assert epoch + 1 == stopped
            break
    assert callback.best_epoch == best


@pytest.fixture
def scripted(base, monkeypatch):
    """Replaces training: runs have the given accuracies, one after another."""

    def use(*scores):
        given = iter(scores)

        def one_run(args, task, strategy, folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "history.csv").write_text(HISTORY, encoding="utf-8")
            scores = {"accuracy": next(given), "loss": 1.0}
            return finetuning.Run(args, base, scores, 2, 4.0, 4.0, folder)

        monkeypatch.setattr(finetuning.runs, "one_run", one_run)

    return use


HISTORY = "epoch,update,loss,val_loss,val_accuracy\n1,2,0.7,0.6,0.5\n2,4,0.5,0.4,0.75\n"


def test_seeds(base, tmp_path, capsys, scripted):
    scripted(0.6, 0.9, 0.505)
    run, metrics = finetune(Args(seeds=3), task(base, floor=0.5), tmp_path)
    assert metrics["accuracy"] == pytest.approx(np.mean([0.6, 0.9, 0.505]), abs=1e-4)
    assert metrics["std"]["accuracy"] == pytest.approx(np.std([0.6, 0.9, 0.505], ddof=1), abs=1e-4)
    assert [each["accuracy"] for each in metrics["seeds"]] == [0.6, 0.9, 0.505]
    assert [each["degenerate"] for each in metrics["seeds"]] == [False, False, True]
    assert "the run with seed 2 learned nothing" in capsys.readouterr().out
    assert (run.args.seed, run.folder) == (1, tmp_path / "runs" / "seed-1")
    assert (tmp_path / "history.csv").read_text(encoding="utf-8") == HISTORY


def test_a_seed_that_diverges(base, tmp_path, capsys, scripted):
    """No mean, no NaN in a file, and another run is the best; where all diverge, there's none."""
    scripted(math.nan, 0.9)
    run, metrics = finetune(Args(seeds=2), task(base, floor=0.5), tmp_path)
    assert (run.args.seed, metrics["best_epoch"]) == (1, 2)
    assert (metrics["accuracy"], metrics["std"]["accuracy"]) == (None, None)
    assert (metrics["loss"], metrics["std"]["loss"]) == (1.0, 0.0)
    assert [each["accuracy"] for each in metrics["seeds"]] == [None, 0.9]
    assert [each["degenerate"] for each in metrics["seeds"]] == [True, False]
    json.dumps(metrics, allow_nan=False)
    assert "the run with seed 0 diverged" in capsys.readouterr().out
    finetuning.write_run_report(tmp_path, "A run", run.args, metrics)
    scripted(math.nan, math.nan)
    with pytest.raises(InputError, match=r"Training diverged.* Received: 0.001 and 4"):
        finetune(Args(seeds=2), task(base), tmp_path)


def test_weights_that_are_no_numbers():
    """NaN logits name class 0 always, which may be right often: they score nothing."""
    model = keras.Sequential([keras.layers.Dense(1)])
    model.build((1, 1))
    callback = finetuning.BestEpoch(lambda: {"f1": 0.5, "loss": 1.0}, "f1")
    callback.set_model(model)
    model.stop_training = False
    callback.on_epoch_end(0, {})
    before = model.get_weights()
    model.set_weights([weight * np.nan for weight in before])
    logs = {}
    callback.on_epoch_end(1, logs)
    assert model.stop_training
    assert np.isnan([logs["val_f1"], logs["val_loss"]]).all()
    callback.on_train_end()
    assert callback.scores == {"f1": 0.5, "loss": 1.0}
    np.testing.assert_array_equal(model.get_weights()[0], before[0])


def test_a_preset_is_settled_in_float32(base, tmp_path):
    strategy = keras_bert.training.strategy()
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        preset, _ = task(base).build(Args())
        run = finetuning.Run(Args(), preset, {}, 1, 1.0, 1.0, tmp_path)
        settled = finetuning.settled(run, strategy, tmp_path)
        assert keras.config.dtype_policy().name == "float32"
    finally:
        keras.config.set_dtype_policy("float32")
    assert settled.model.get_layer("block_0").dtype_policy.name == "float32"
    for ours, theirs in zip(settled.model.get_weights(), preset.model.get_weights()):
        np.testing.assert_array_equal(ours, theirs)
    again = finetuning.settled(dataclasses.replace(run, preset=settled), strategy, tmp_path)
    assert again is settled


@pytest.mark.parametrize("name", ["span_classifier", "token_classifier", "multiple_choice"])
def test_a_head_is_kept(base, name):
    build = getattr(keras_bert.tasks, name)
    options = {"num_classes": 2} if name == "token_classifier" else {}
    labels = ("O", "X") if options else ()
    own = build(finetuning.start_encoder(Args(), base), **options)
    preset = dataclasses.replace(base, model=own, labels=labels)
    model = build(finetuning.start_encoder(Args(), base), **options)
    assert not finetuning.keep_head(Args(reinitialize_layers=1), preset, model, labels)
    assert not finetuning.keep_head(Args(), preset, model, ("a", "b", "c"))
    assert not finetuning.keep_head(Args(), base, model, labels)
    assert finetuning.keep_head(Args(), preset, model, labels)
    head = {weight.path: values(weight) for weight in own.weights}
    for weight in model.weights:
        np.testing.assert_array_equal(values(weight), head[weight.path])


def test_search_chooses_by_the_dev_score(base, tmp_path, scripted):
    """All 18 settings of the paper with the first seed; the best with the others."""
    scores = [0.1] * 18
    scores[13] = 0.8
    scripted(*scores, 0.6)
    run, metrics = finetune(Args(search=True, seeds=2), task(base), tmp_path)
    best = {"learning_rate": 5e-5, "batch_size": 16, "epochs": 3}
    assert metrics.items() >= best.items()
    assert [each["accuracy"] for each in metrics["search"]] == scores
    assert [each["accuracy"] for each in metrics["seeds"]] == [0.8, 0.6]
    assert (run.args.learning_rate, run.args.batch_size, run.args.epochs) == (5e-5, 16, 3)
    assert (tmp_path / "runs" / "5e-05-16-3" / "history.csv").exists()


def test_report_has_seeds_and_curves(base, tmp_path, scripted):
    scripted(0.6, 0.9)
    args = Args(seeds=2)
    _, metrics = finetune(args, task(base), tmp_path)
    finetuning.write_run_report(tmp_path, "A run", args, metrics | {"test": {"f1": 0.25}})
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for text in ("Seeds", "val_accuracy", "Means over the seeds", "<svg", "on the test file"):
        assert text in page


def test_reinitialised_layers(base):
    """The top ones are drawn anew; with them the pooler."""
    keras.utils.set_random_seed(1)
    encoder = finetuning.start_encoder(Args(freeze_layers=1, reinitialize_layers=1), base)
    before = {weight.path: values(weight) for weight in base.encoder.weights}
    for weight in encoder.weights:
        anew = weight.path.startswith(("block_1/", "pooler")) and weight.path.endswith("kernel")
        assert np.array_equal(values(weight), before[weight.path]) != anew, weight.path


def test_flags_are_checked(base, tmp_path):
    def refused(**changes):
        with pytest.raises(InputError) as caught:
            finetuning.set_up(Args(output_dir=str(tmp_path / "run"), **changes))
        return str(caught.value)

    assert "--seeds must be at least 1" in refused(seeds=0)
    assert "--seed and --seeds must end at" in refused(seed=2**32 - 1, seeds=2)
    assert "--train-file is empty" in refused(train_file="")
    assert "at least 0, and finite. Received: inf" in refused(learning_rate=float("inf"))
    assert "--layer-decay" in refused(layer_decay=0.0)
    assert "--patience" in refused(patience=-1)
    with pytest.raises(InputError, match="position table of base ends at 8"):
        finetuning.check_lengths(Args(max_sequence_length=9), base)
    with pytest.raises(InputError, match="at most 2 together"):
        finetuning.check_lengths(Args(freeze_layers=2, reinitialize_layers=1), base)
    args, _ = finetuning.set_up(Args(output_dir=str(tmp_path / "run"), smoke=True, seeds=5))
    assert (args.epochs, args.seeds) == (1, 1)


def test_predictions_are_a_table_and_json(tmp_path):
    rows = [{"text": "a\tb\nc", "scores": {"x": 0.5}}, {"text": "文", "label": "x", "scores": {}},
            {"text": "d", "label": None, "scores": {}}]  # fmt: skip
    finetuning.write_predictions(tmp_path, rows)
    table = (tmp_path / "predictions.tsv").read_text(encoding="utf-8")
    assert table == 'text\tscores\tlabel\na b c\t{"x": 0.5}\t\n文\t{}\tx\nd\t{}\t\n'
    assert json.loads((tmp_path / "predictions.json").read_text(encoding="utf-8")) == rows
