"""One run, several seeds, the paper's search; and the best one's preset."""

from __future__ import annotations

import dataclasses
import gc
import math
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_bert.checkpoints import Preset, load, save
from keras_bert.errors import InputError
from keras_bert.finetuning.best_epoch import BestEpoch, value_of
from keras_bert.finetuning.flags import GRID, settings_to_try
from keras_bert.training import AdamW, WarmupLinear, callbacks

# A run that's no further than this above what one answer to everything scores learned nothing.
MARGIN = 0.01


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


def finetune(args: Any, task: Task, strategy: Any, folder: pathlib.Path) -> tuple[Run, dict]:
    """Makes the run, or all runs that `--search` and `--seeds` ask for.

    With `--search`, every setting of `GRID` is tried with the first seed; the best by the dev
    score is then run with the other seeds. A single run leaves `history.csv` and `logs` in
    `folder`; several leave theirs in `folder/runs/NAME`, and the best's `history.csv` is copied.

    Returns:
        The best run, and what `metrics.json` is to hold: the scores (means over the seeds),
        `best_epoch`, `train_seconds`, `examples_per_second`; with several seeds `std`, `seeds`
        (each run) and the flag `degenerate` of each; with a search `search` (each setting) and
        the best setting's numbers. None stands for what's no number, as where a run diverged.

    Raises:
        InputError: all runs diverged: there's nothing to keep.
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
        del run  # beside the next one there's memory for the best alone
    assert best is not None
    seeds = [summary(best, task)]
    chosen = best.args
    for seed in range(args.seed + 1, args.seed + args.seeds):
        run_args = dataclasses.replace(chosen, seed=seed)
        run = one_run(run_args, task, strategy, folder / "runs" / f"seed-{seed}")
        seeds.append(summary(run, task))
        best = better(best, run, task.metric)
        del run  # beside the next one there's memory for the best alone

    if math.isinf(value_of(best.scores, task.metric)):
        raise InputError(
            "Training diverged: the model's weights or its scores on the dev file aren't numbers. "
            f"Lower --learning-rate or --batch-size. Received: {args.learning_rate} and "
            f"{args.batch_size}."
        )
    metrics = over_seeds(seeds) | {"best_epoch": best.best_epoch}
    if args.search:
        metrics |= {flag: getattr(best.args, flag) for flag in GRID} | {"search": searched}
    if not alone:
        shutil.copyfile(best.folder / "history.csv", folder / "history.csv")
    for each in seeds:
        found = each[task.metric]
        if found is None:
            print(f"warning: the run with seed {each['seed']} diverged: there are no means.")
        elif each["degenerate"]:
            print(
                f"warning: the run with seed {each['seed']} learned nothing: its {task.metric} is "
                f"{found}, and one answer to everything scores {task.floor:.4f}."
            )
    return best, metrics


def one_run(args: Any, task: Task, strategy: Any, folder: pathlib.Path) -> Run:
    """Fine-tunes once with `args.seed` and puts the best epoch's weights back."""
    gc.collect()  # of a run before, whose model holds on to itself in circles
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
            callbacks.TensorBoard(folder / "logs"),
        ],
    )
    seconds = time.perf_counter() - started - best.seconds
    examples = len(history.epoch) * task.num_examples
    return Run(args, preset, best.scores, best.best_epoch, seconds, examples / seconds, folder)


def better(first: Run | None, second: Run, metric: str) -> Run:
    """The run with the higher score; the first of equals."""
    if first is None or value_of(second.scores, metric) > value_of(first.scores, metric):
        return second
    return first


def summary(run: Run, task: Task) -> dict[str, Any]:
    """A run's row in `metrics.json`."""
    return {
        "seed": run.args.seed,
        **rounded(run.scores),
        "best_epoch": run.best_epoch,
        "degenerate": value_of(run.scores, task.metric) <= task.floor + MARGIN,
        "train_seconds": round(run.seconds, 1),
        "examples_per_second": round(run.examples_per_second, 1),
    }


def over_seeds(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Means of the runs' numbers, and, of several, standard deviations and each run."""
    left_out = ("seed", "best_epoch", "degenerate")
    names = dict.fromkeys(name for each in seeds for name in each if name not in left_out)
    # A run that diverged has a None, or in its first epoch not even that.
    values = {name: np.array([each.get(name) for each in seeds], np.float64) for name in names}
    metrics: dict[str, Any] = rounded({name: np.mean(x) for name, x in values.items()})
    if len(seeds) > 1:
        spread = rounded({name: np.std(x, ddof=1) for name, x in values.items()})
        metrics |= {"std": spread, "seeds": seeds}
    return metrics


def rounded(scores: Mapping[str, Any]) -> dict[str, float | None]:
    """Scores for `metrics.json`, which has no word for what's no finite number: None."""
    return {
        name: round(float(value), 4) if math.isfinite(value) else None
        for name, value in scores.items()
    }


def settled(run: Run, strategy: Any, folder: pathlib.Path) -> Preset:
    """The run's preset as any later process will load it: saved in `folder/preset`, in float32.

    Mixed precision is for training. Thresholds and predictions that are made with what this
    returns are those of the saved preset; where its settings change, it's saved once more.
    """
    save(run.preset, folder / "preset")
    if keras.config.dtype_policy().name == "float32":
        return run.preset
    keras.config.set_dtype_policy("float32")
    with strategy.scope():
        return load(folder / "preset")
