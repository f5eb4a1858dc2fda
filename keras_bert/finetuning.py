"""What fine-tuning recipes share: one run, several seeds, the paper's search, and their files.

A recipe says in a `Task` how its model is built, fed and judged; `finetune` makes the runs, and
`write_predictions` and `write_run_report` leave what they found. `args` is the recipe's own
dataclass: the flags that fine-tuning recipes have in common are read from it by name.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pathlib
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_bert import recipe
from keras_bert.checkpoints import Preset
from keras_bert.checkpoints.preset import build
from keras_bert.errors import InputError
from keras_bert.files import write_json, write_text
from keras_bert.layers import EncoderBlock
from keras_bert.report import Curves, Section, Table, history_curves, write_report
from keras_bert.training import AdamW, WarmupLinear, callbacks, describe_batch, strategy

# What `--search` tries: Devlin et al., 2018, appendix A.3.
GRID = {"learning_rate": (2e-5, 3e-5, 5e-5), "batch_size": (16, 32), "epochs": (2, 3, 4)}
EMBEDDINGS = ("token_embedding", "position_embedding", "segment_embedding", "embedding_norm")
# A run that's no further than this above what one answer to everything scores learned nothing.
MARGIN = 0.01
SMOKE_EXAMPLES = 64  # of each file, with `--smoke`: to see that a command works


@dataclasses.dataclass(frozen=True)
class Task:
    """How a recipe's model is built, fed and judged.

    Attributes:
        build: The run's arguments -> a new preset and the model to train. The two may be one
            model, or two that share their weights (a packed one to train, say). Called in the
            strategy's scope, once a run.
        batches: The run's arguments -> training batches of (inputs, labels, weights): one
            epoch, in a new order each time it's iterated; its `len` is an epoch's updates.
        num_examples: What an epoch holds.
        loss: As for `Model.compile`.
        score: The preset -> its scores on the dev file by name; called after each epoch.
        metric: The score that chooses the best epoch and run; higher is better.
        floor: What one answer to everything would score by it.
    """

    build: Callable[[Any], tuple[Preset, keras.Model]]
    batches: Callable[[Any], Any]
    num_examples: int
    loss: Any
    score: Callable[[Preset], dict[str, float]]
    metric: str
    floor: float = 0.0


@dataclasses.dataclass(frozen=True)
class Run:
    """One run, at its best epoch."""

    args: Any
    preset: Preset
    scores: dict[str, float]
    best_epoch: int
    seconds: float  # of training alone, without scoring
    examples_per_second: float
    folder: pathlib.Path


def set_up(args: Any) -> tuple[Any, Any]:
    """Checks the common flags and chooses devices and precision; writes nothing.

    Returns:
        The arguments of this host (with `--smoke`: for one epoch of one run), and the strategy.

    Raises:
        InputError: a flag's value can't be, or the output folder may not be used.
    """
    args = recipe.on_this_host(args)
    if args.smoke:
        args = dataclasses.replace(args, epochs=1, seeds=1, search=False)
    recipe.check_output_dir(args.output_dir, overwrite=args.overwrite)
    recipe.check_training_numbers(args)
    for name, least in (
        ("epochs", 1),
        ("seeds", 1),
        ("patience", 0),
        ("freeze_layers", 0),
        ("reinitialize_layers", 0),
    ):
        if getattr(args, name) < least:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} must be at least {least}. Received: {getattr(args, name)}.")
    if not 0 < args.layer_decay <= 1:
        raise InputError(
            f"--layer-decay must be above 0 and at most 1. Received: {args.layer_decay}."
        )
    devices = strategy(args.strategy, args.tpu or None)
    for each in settings_to_try(args):
        line = describe_batch(devices, each.batch_size, args.accumulate)
    print(line)
    keras.utils.set_random_seed(args.seed)
    keras.config.set_dtype_policy(args.precision)
    return args, devices


def check_lengths(args: Any, base: Preset) -> None:
    """Refuses flags that the checkpoint has no positions or layers for."""
    longest = base.config.max_sequence_length
    if not 3 <= args.max_sequence_length <= longest:
        raise InputError(
            f"--max-sequence-length is {args.max_sequence_length}; it must be at least 3, and the "
            f"position table of {args.checkpoint} ends at {longest}."
        )
    num_layers = base.config.num_layers
    if args.freeze_layers + args.reinitialize_layers > num_layers:
        raise InputError(
            f"--freeze-layers and --reinitialize-layers must be at most {num_layers} together, the "
            f"layers of {args.checkpoint}. Received: {args.freeze_layers} and "
            f"{args.reinitialize_layers}."
        )


def start_encoder(args: Any, base: Preset) -> keras.Model:
    """A new encoder to start a run from, with the weights of the checkpoint's.

    `--reinitialize-layers K` leaves the top K blocks and the pooler as they're drawn: they're
    the most specialised on pretraining. `--freeze-layers K` holds the embeddings and the lowest
    K blocks as they are.

    References:
        - Re-initialising: [Zhang et al., 2021](https://arxiv.org/abs/2006.05987), section 5.
        - Freezing: [Lee et al., 2019](https://arxiv.org/abs/1911.03090).
    """
    encoder, _ = build(base.config, "encoder", {})
    blocks = [layer.name for layer in encoder.layers if isinstance(layer, EncoderBlock)]
    anew, frozen = args.reinitialize_layers, args.freeze_layers
    drawn = {"pooler", *blocks[len(blocks) - anew :]} if anew else set()
    held = {*EMBEDDINGS, *blocks[:frozen]} if frozen else set()
    for layer in encoder.layers:
        if layer.name not in drawn:
            layer.set_weights(base.encoder.get_layer(layer.name).get_weights())
        if layer.name in held:
            layer.trainable = False
    return encoder


def needs_one_shape(args: Any, devices: Any) -> bool:
    """Whether batches should all have one shape: each is compiled, or replicas want equal parts.

    TensorFlow's graphs on a CPU, and torch, take any shape at no cost.
    """
    backend = keras.backend.backend()
    if backend == "jax" or devices.num_replicas_in_sync > 1 or args.strategy == "tpu":
        return True
    return backend == "tensorflow" and bool(keras.distribution.list_devices("gpu"))


def finetune(args: Any, task: Task, strategy: Any, folder: pathlib.Path) -> tuple[Run, dict]:
    """Makes the run, or all runs that `--search` and `--seeds` ask for.

    With `--search`, every setting of `GRID` is tried with the first seed; the best by the dev
    score is then run with the other seeds. A single run leaves `history.csv` and `logs` in
    `folder`; several leave theirs in `folder/runs/NAME`, and the best's `history.csv` is copied.

    Returns:
        The best run, and what `metrics.json` is to hold: the scores (means over the seeds),
        `best_epoch`, `train_seconds`, `examples_per_second`; with several seeds `std`, `seeds`
        (each run) and the flag `degenerate` of each; with a search `search` (each setting) and
        the best setting's numbers.
    """
    settings = settings_to_try(args)
    alone = len(settings) == args.seeds == 1
    best: Run | None = None
    searched = []
    for each in settings:
        name = "-".join(f"{getattr(each, flag):g}" for flag in GRID) if args.search else "first"
        where = folder if alone else folder / "runs" / name
        run = one_run(each, task, strategy, where)
        searched.append({flag: getattr(each, flag) for flag in GRID} | summary(run, task))
        best = better(best, run, task.metric)
    assert best is not None
    seeds = [summary(best, task)]
    first = best
    for seed in range(args.seed + 1, args.seed + args.seeds):
        run_args = dataclasses.replace(first.args, seed=seed)
        run = one_run(run_args, task, strategy, folder / "runs" / f"seed-{seed}")
        seeds.append(summary(run, task))
        best = better(best, run, task.metric)

    metrics = over_seeds(seeds) | {"best_epoch": best.best_epoch}
    if args.search:
        metrics |= {flag: getattr(best.args, flag) for flag in GRID} | {"search": searched}
    if not alone:
        shutil.copyfile(best.folder / "history.csv", folder / "history.csv")
    for each in seeds:
        if each["degenerate"]:
            print(
                f"warning: the run with seed {each['seed']} learned nothing: its {task.metric} is "
                f"{each[task.metric]}, and one answer to everything scores {task.floor:.4f}."
            )
    return best, metrics


def settings_to_try(args: Any) -> list[Any]:
    """The arguments of each run of a search; without `--search` the one given."""
    if not args.search:
        return [args]
    grid = itertools.product(*GRID.values())
    return [dataclasses.replace(args, **dict(zip(GRID, each, strict=True))) for each in grid]


def one_run(args: Any, task: Task, strategy: Any, folder: pathlib.Path) -> Run:
    """Fine-tunes once with `args.seed` and puts the best epoch's weights back."""
    folder.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(args.seed)
    batches = task.batches(args)
    updates = args.epochs * len(batches)
    rate = WarmupLinear(args.learning_rate, round(args.warmup_ratio * updates), updates)
    with strategy.scope():
        preset, model = task.build(args)
        model.compile(
            AdamW(rate, weight_decay=args.weight_decay, layer_decay=args.layer_decay),
            task.loss,
            accumulate=args.accumulate,
            steps_per_execution=args.steps_per_execution,
        )
        # TensorFlow would trace the step twice: once more without these variables' making.
        model.optimizer.build(model.trainable_variables)
    best = BestEpoch(lambda: task.score(preset), task.metric, args.patience)
    started = time.perf_counter()
    history = model.fit(
        batches,
        epochs=args.epochs,
        shuffle=False,
        verbose=0,
        callbacks=[
            best,  # first: the others show its scores
            callbacks.ProgressBar(updates, f"Fine-tuning (seed {args.seed})"),
            callbacks.History(folder / "history.csv"),
            keras.callbacks.TensorBoard(folder / "logs"),
        ],
    )
    seconds = time.perf_counter() - started - best.seconds
    examples = len(history.epoch) * task.num_examples
    return Run(args, preset, best.scores, best.best_epoch, seconds, examples / seconds, folder)


class BestEpoch(keras.callbacks.Callback):
    """Scores each epoch, puts the best one's weights back at the end, and may stop early.

    The scores join fit's logs as `val_NAME`, for the callbacks behind this one. A score that is
    no number is worse than any other.

    Args:
        score: Scores by name, of the weights as they are.
        metric: The one that counts; higher is better, and of equals the earlier.
        patience: Epochs without a better score after which training stops; 0: it never does.
    """

    def __init__(self, score: Callable[[], dict[str, float]], metric: str, patience: int = 0):
        super().__init__()
        self.score = score
        self.metric = metric
        self.patience = patience
        self.scores: dict[str, float] = {}
        self.best_epoch = 0
        self.seconds = 0.0
        self._weights: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Scores and compares."""
        started = time.perf_counter()
        scores = self.score()
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in scores.items()})
        if not self.scores or value_of(scores, self.metric) > value_of(self.scores, self.metric):
            self.scores, self.best_epoch = scores, epoch + 1
            self._weights = self.model.get_weights()
        elif self.patience and epoch + 1 - self.best_epoch >= self.patience:
            self.model.stop_training = True
        self.seconds += time.perf_counter() - started

    def on_train_end(self, logs: Any = None) -> None:
        """Restores the best."""
        if self._weights:
            self.model.set_weights(self._weights)


def value_of(scores: dict[str, float], metric: str) -> float:
    """A score that NaN doesn't win by."""
    return -math.inf if math.isnan(scores[metric]) else scores[metric]


def better(first: Run | None, second: Run, metric: str) -> Run:
    """The run with the higher score; the first of equals."""
    if first is None or value_of(second.scores, metric) > value_of(first.scores, metric):
        return second
    return first


def summary(run: Run, task: Task) -> dict[str, Any]:
    """A run's row in `metrics.json`."""
    return {
        "seed": run.args.seed,
        **{name: round(value, 4) for name, value in run.scores.items()},
        "best_epoch": run.best_epoch,
        "degenerate": value_of(run.scores, task.metric) <= task.floor + MARGIN,
        "train_seconds": round(run.seconds, 1),
        "examples_per_second": round(run.examples_per_second, 1),
    }


def over_seeds(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Means of the runs' numbers, and, of several, standard deviations and each run."""
    names = [name for name in seeds[0] if name not in ("seed", "best_epoch", "degenerate")]
    values = {name: [each[name] for each in seeds] for name in names}
    metrics: dict[str, Any] = {name: round(statistics.fmean(x), 4) for name, x in values.items()}
    if len(seeds) > 1:
        spread = {name: round(statistics.stdev(x), 4) for name, x in values.items()}
        metrics |= {"std": spread, "seeds": seeds}
    return metrics


def write_predictions(folder: pathlib.Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes `predictions.tsv` and `predictions.json`, a row an example, in file order.

    The keys of the first row are the columns. A table has no room for what isn't plain: there,
    tabs and line breaks in a text become spaces, and a dict or list its JSON.
    """

    def cell(value: Any) -> str:
        if isinstance(value, (dict, list, tuple)):
            value = json.dumps(value, ensure_ascii=False)
        text = "" if value is None else str(value)
        return text.replace("\t", " ").replace("\r", " ").replace("\n", " ")

    columns = list(rows[0]) if rows else []
    lines = ["\t".join(columns), *("\t".join(cell(row[name]) for name in columns) for row in rows)]
    write_text(folder / "predictions.tsv", "\n".join(lines) + "\n")
    write_json(folder / "predictions.json", list(rows))


def write_run_report(
    folder: pathlib.Path,
    title: str,
    args: Any,
    metrics: dict[str, Any],
    sections: Sequence[Section] = (),
) -> None:
    """Writes `report.html`: scores, seeds, search and curves, then the recipe's own sections."""
    plain = {name: value for name, value in metrics.items() if not isinstance(value, (list, dict))}
    several = "Means over the seeds. " if "seeds" in metrics else ""
    note = f"{several}On the dev file, at the epoch that's best on that same file."
    parts: list[Section] = [Table("Scores", ("name", "value"), list(plain.items()), note=note)]
    if "test" in metrics:
        parts.append(
            Table("Scores on the test file", ("name", "value"), list(metrics["test"].items()))
        )
    for name, heading in (("seeds", "Seeds"), ("search", "Search")):
        if name in metrics:
            rows = [list(each.values()) for each in metrics[name]]
            parts.append(Table(heading, tuple(metrics[name][0]), rows))
    history = callbacks.read_history(folder / "history.csv")
    losses = history_curves("Loss", history, "loss", "nats")
    endings = [name.removeprefix("val_") for name in history if name.startswith("val_")]
    scores = [name for name in endings if name != "loss"]
    series = {
        name: list(zip(history["update"], history[name], strict=True))
        for name in history
        if name.removeprefix("val_") in scores
    }
    parts += [losses, Curves("Scores by epoch", series, "update", "")]
    arguments = Table("Arguments", ("name", "value"), list(dataclasses.asdict(args).items()))
    write_report(folder / "report.html", title, [*parts, *sections, arguments], recipe.command())
