r"""Fine-tuning beside Hugging Face's: the same start, splits, rate, batches and epochs.

    python benchmarks/finetuning.py --data DATA --weights MODEL --tasks classify pair sts tag qa \
        --yardstick hf_finetune.py --yardstick-python VENV/bin/python --output-dir runs/finetuning

`quality` runs our recipes with three seeds. `speed` runs both on the same first examples (1,500;
500 of `qa`) in turn, three times, each as a process of its own, and takes the ratio of the medians
of the seconds of training. `long` reads 300 film reviews of some 700 words by their head, by head
and tail, and in windows, in five folds; an accuracy's difference comes with the standard error of
its mean over the texts, which are the same for all.

    python benchmarks/finetuning.py --data DATA --weights MODEL --measure epoch --examples 1000 \
        --tasks classify tag pair qa --peers-python VENV/bin/python --output-dir runs/epoch

`epoch` is one epoch over a task's training split (or its first so many examples, with a quarter as
many of the dev split), from the texts to the score of the dev split: by our recipe, and by the
sides of `peer_finetuning.py`, each a process of its own, in turn, in another order each round.
Imports and the loading of the weights aren't counted, and are told; nor is what our recipe does
once it has the score: it saves the preset, reads the dev split once more and writes its report. As
our recipe reads the dev split's texts where it scores them, its `tokenization` is the training
split's alone; `other` is mostly the making of the model. The ratios are of medians, ours to a
side's. `found` is a round's score each: sides whose scores differ by more than seeds do don't do
the same work. `sts` is left out.

The last line is a JSON object of everything; DATA holds the splits' folders, MODEL is the folder of
a Hugging Face checkpoint.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import tyro

RECIPES = pathlib.Path(__file__).resolve().parents[1] / "recipes"
PEERS = pathlib.Path(__file__).with_name("peer_finetuning.py")
SIDES = ("ours", "hf", "hf_grouped", "keras_hub")


class Task(NamedTuple):
    """A task's files, as the yardstick reads them, and the yardstick's settings."""

    files: str
    recipe: str
    metric: str
    epochs: int = 3
    batch_size: int = 32
    examples: int = 1500  # for speed
    flags: tuple[str, ...] = ()


TASKS = {
    "classify": Task(
        "text_classification/mr_sentence_polarity/{}.tsv", "finetune_classifier", "accuracy"
    ),
    "pair": Task("benchmark/snli/{}.tsv", "finetune_pairs", "accuracy"),
    "sts": Task(
        "sentence_pair/stsb_open/en.{}.tsv",
        "finetune_pairs",
        "spearman",
        examples=1000,  # all there are
        flags=("--regression",),
    ),
    "tag": Task("sequence_labelling/wnut17_ner/{}.conll", "finetune_tagger", "entity_f1"),
    "qa": Task(
        "benchmark/squad_v1/{}.json",
        "finetune_squad",
        "f1",
        epochs=2,
        batch_size=16,
        examples=500,
    ),
}
LONG = "text_classification/movie_reviews_long/train.tsv"
READINGS = {
    "head": ["--truncate", "head"],
    "head+tail": ["--truncate", "head+tail"],
    "windows": ["--windows", "126"],
}


@dataclasses.dataclass(frozen=True)
class Args:
    """Compare fine-tuning with a yardstick."""

    data: str
    """Folder of the data sets."""
    weights: str
    """Folder of a Hugging Face checkpoint."""
    output_dir: str
    """Where the runs go."""
    measure: tuple[str, ...] = ("quality", "speed")
    """What to measure: quality, speed, long, epoch."""
    tasks: tuple[str, ...] = tuple(TASKS)
    """Of quality, speed and epoch."""
    yardstick: str = ""
    """Script to compare speed with: TASK SEED --limit N, prints a JSON line."""
    yardstick_python: str = sys.executable
    """The Python that has what it needs."""
    seeds: int = 3
    """Runs of each task."""
    repeats: int = 3
    """Runs of each side, for speed."""
    peers_python: str = sys.executable
    """The Python that has transformers and torch, for epoch."""
    examples: int = 0
    """Of each training split, for epoch; 0: all."""
    rounds: int = 3
    """Runs of each side, for epoch."""
    sides: tuple[str, ...] = SIDES
    """Who takes part in epoch."""


def main(args: Args) -> None:
    output = pathlib.Path(args.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict] = {}
    for task in args.tasks:
        if "quality" in args.measure:
            folder = output / f"quality-{task}"
            metrics = ours(args, task, folder, ["--seeds", str(args.seeds)])
            metric = TASKS[task].metric
            results[f"quality {task}"] = {
                "metric": metric,
                "mean": metrics[metric],
                "seeds": [each[metric] for each in metrics.get("seeds", [metrics])],
                "train_seconds": metrics["train_seconds"],
            } | {k: v for k, v in metrics.items() if k == "untrained_cosine_spearman"}
            print(json.dumps(results[f"quality {task}"]), flush=True)
        if "speed" in args.measure:
            results[f"speed {task}"] = speed(args, task, output)
            print(json.dumps(results[f"speed {task}"]), flush=True)
        if "epoch" in args.measure and task != "sts":
            results[f"epoch {task}"] = epoch(args, task, output)
            print(f"epoch {task}", json.dumps(results[f"epoch {task}"]), flush=True)
    if "long" in args.measure:
        results["long"] = long_texts(args, output)
    print(json.dumps(results))


def speed(args: Args, task: str, output: pathlib.Path) -> dict:
    """Seconds of training on the first rows, in turn, so that both meet the same machine."""
    train = cut(args, task, output, TASKS[task].examples)
    seconds: dict[str, list[float]] = {"ours": [], "yardstick": []}
    for repeat in range(args.repeats):
        metrics = ours(args, task, output / f"speed-{task}-{repeat}", ["--train-file", str(train)])
        seconds["ours"].append(metrics["train_seconds"])
        if args.yardstick:
            command = [args.yardstick_python, args.yardstick, task, str(repeat)]
            command += ["--limit", str(TASKS[task].examples)]
            command += ["--epochs", str(TASKS[task].epochs)]
            command += ["--batch", str(TASKS[task].batch_size)]
            environment = {"WEIGHTS": args.weights, "DATA": args.data}
            seconds["yardstick"].append(last_line(command, environment)["train_seconds"])
        print(task, seconds, flush=True)
    medians = {name: statistics.median(each) for name, each in seconds.items() if each}
    ratio = {"ratio": round(medians["ours"] / medians["yardstick"], 3)} if args.yardstick else {}
    return {"seconds": seconds, "medians": medians} | ratio


def cut(
    args: Args, task: str, output: pathlib.Path, count: int, part: str = "train"
) -> pathlib.Path:
    """A task's first examples, in a file like the one they come from."""
    source = pathlib.Path(args.data) / TASKS[task].files.format(part)
    text = source.read_text(encoding="utf-8")
    if task == "qa":
        text = first_questions(text, count)
    elif task == "tag":
        text = "\n\n".join(re.split(r"\n\s*\n", text)[:count]) + "\n"
    else:
        text = "\n".join(text.split("\n")[: count + 1]) + "\n"
    name = f"{task}-{count}" if part == "train" else f"{task}-{part}-{count}"
    path = output / f"{name}{source.suffix}"
    path.write_text(text, encoding="utf-8")
    return path


def first_questions(text: str, count: int) -> str:
    """The JSON of SQuAD with its first questions alone."""
    file = json.loads(text)
    for article in file["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = paragraph["qas"][:count]
            count -= len(paragraph["qas"])
    return json.dumps(file)


def ours(args: Args, task: str, folder: pathlib.Path, more: list[str]) -> dict:
    """A run of our recipe with the yardstick's settings."""
    command = [sys.executable, str(RECIPES / f"{TASKS[task].recipe}.py")]
    return last_line([*command, *flags(args, task, folder, more)], {})


def flags(args: Args, task: str, folder: pathlib.Path, more: list[str]) -> list[str]:
    """Our recipe's, with the yardstick's settings; of flags given twice the last counts."""
    data, files = pathlib.Path(args.data), TASKS[task].files
    command = ["--checkpoint", args.weights, "--learning-rate", "5e-5", *TASKS[task].flags]
    command += ["--epochs", str(TASKS[task].epochs), "--batch-size", str(TASKS[task].batch_size)]
    command += ["--train-file", str(data / files.format("train"))]
    command += ["--dev-file", str(data / files.format("dev"))]
    return [*command, "--output-dir", str(folder), *more, "--overwrite"]


def last_line(command: list[str], environment: dict[str, str]) -> dict:
    """The JSON object that a process prints last."""
    result = subprocess.run(  # noqa: S603 - what this file puts together
        command,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(result.stdout.strip().split("\n")[-1])


def epoch(args: Args, task: str, output: pathlib.Path) -> dict:
    """Texts in, a score out, by every side in turn: medians, least and most, and ratios."""
    data, files = pathlib.Path(args.data), TASKS[task].files
    train, dev = (str(data / files.format(part)) for part in ("train", "dev"))
    if args.examples:
        train = str(cut(args, task, output, args.examples))
        dev = str(cut(args, task, output, args.examples // 4, "dev"))
    weights = {"keras_hub": str(output / "keras_hub")}
    if "keras_hub" in args.sides:
        convert = ["--checkpoint", args.weights, "--format", "keras_hub"]
        convert += ["--output-dir", weights["keras_hub"], "--overwrite"]
        last_line([sys.executable, str(RECIPES / "convert.py"), *convert], {})
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in args.sides}
    for number in range(args.rounds):
        first = number % len(args.sides)  # none is always first
        for side in args.sides[first:] + args.sides[:first]:
            if side == "ours":
                more = ["--train-file", train, "--dev-file", dev, "--epochs", "1"]
                more += ["--seed", str(number)]
                command = [sys.executable, __file__, "ours", task]
                command += flags(args, task, output / f"epoch-{task}", more)
            else:
                python = sys.executable if side == "keras_hub" else args.peers_python
                command = [python, str(PEERS), side, task, weights.get(side, args.weights)]
                command += [train, dev, str(TASKS[task].batch_size), str(number)]
            began = time.perf_counter()
            found = last_line(command, {"KERAS_BACKEND": "tensorflow"})
            runs[side].append(found | {"process": round(time.perf_counter() - began, 1)})
            print(task, side, json.dumps(runs[side][-1]), flush=True)
    table = {
        side: {
            name: {
                "median": statistics.median(each[name] for each in found),
                "least": min(each[name] for each in found),
                "most": max(each[name] for each in found),
            }
            for name in found[0]
            if name != "found"
        }
        | {"found": [each["found"] for each in found]}
        for side, found in runs.items()
    }
    ratios = {
        side: {
            name: round(table["ours"][name]["median"] / table[side][name]["median"], 3)
            for name in ("seconds", "train", "process")
        }
        for side in args.sides
        if side != "ours" and "ours" in args.sides
    }
    return {"sides": table, "ratios": ratios}


def recipe_run(task: str, flags: list[str]) -> None:
    """One process of our side: the recipe's own `main`, with clocks on what it calls."""
    began = time.perf_counter()
    sys.path.insert(0, str(RECIPES))
    recipe = importlib.import_module(TASKS[task].recipe)
    import keras_bert
    from keras_bert import finetuning

    seconds: Counter[str] = Counter(imports=time.perf_counter() - began)
    ends: dict[str, Any] = {}
    finetune = finetuning.finetune

    def timed(args: Any, task: finetuning.Task, *more: Any) -> Any:
        seconds["before"] = time.perf_counter() - began - seconds["loading"]
        batches = clocked(task.batches, seconds, "tokenization")
        score = clocked(task.score, seconds, "score")
        task = dataclasses.replace(
            task, batches=lambda args: ends.setdefault("batches", batches(args)), score=score
        )
        best, metrics = finetune(args, task, *more)
        ends.update(at=time.perf_counter(), train=best.seconds, found=metrics[task.metric])
        return best, metrics

    keras_bert.load = clocked(keras_bert.load, seconds, "loading")
    finetuning.finetune = timed
    args = tyro.cli(recipe.Args, args=flags)
    began = time.perf_counter()
    recipe.main(args)
    seconds["afterwards"] = time.perf_counter() - ends["at"]
    seconds["seconds"] = ends["at"] - began - seconds["loading"]
    seconds["tokenization"] += seconds.pop("before")
    seconds["train"] = ends["train"]
    parts = seconds["tokenization"] + seconds["train"] + seconds["score"]
    seconds["other"] = seconds["seconds"] - parts
    masks = [inputs["padding_mask"].numpy() > 0 for inputs, *_ in ends["batches"]]
    fill = sum(int(mask.sum()) for mask in masks) / sum(mask.size for mask in masks)
    rounded = {name: round(x, 3) for name, x in seconds.items()}
    print(json.dumps(rounded | {"found": ends["found"], "fill": round(fill, 3)}))


def clocked(function: Callable[..., Any], seconds: Counter[str], name: str) -> Callable[..., Any]:
    """The function, which adds the time of its calls to `seconds`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = function(*args, **kwargs)
        seconds[name] += time.perf_counter() - began
        return result

    return call


def long_texts(args: Args, output: pathlib.Path) -> dict:
    """Accuracy of each reading over five folds, and differences from the head's."""
    lines = (pathlib.Path(args.data) / LONG).read_text(encoding="utf-8").split("\n")
    rows = [line for line in lines[1:] if line.strip()]
    random.Random(0).shuffle(rows)  # noqa: S311 - an order, not a secret
    right: dict[str, list[bool]] = {name: [] for name in READINGS}
    for fold in range(5):
        parts = {"dev": rows[fold::5], "train": [r for i, r in enumerate(rows) if i % 5 != fold]}
        for name, part in parts.items():
            path = output / f"long-{fold}-{name}.tsv"
            path.write_text("\n".join([lines[0], *part]) + "\n", encoding="utf-8")
        for name, flags in READINGS.items():
            folder = output / f"long-{fold}-{name.replace('+', '-')}"
            files = {part: str(output / f"long-{fold}-{part}.tsv") for part in parts}
            command = [sys.executable, str(RECIPES / "finetune_classifier.py")]
            command += ["--checkpoint", args.weights, "--output-dir", str(folder), *flags]
            command += ["--overwrite"]
            command += ["--train-file", files["train"], "--dev-file", files["dev"]]
            command += ["--epochs", "3", "--learning-rate", "5e-5"]
            last_line(command, {})
            entries = json.loads((folder / "predictions.json").read_text(encoding="utf-8"))
            right[name] += [each["label"] == each["prediction"] for each in entries]
            print(fold, name, statistics.fmean(right[name]), flush=True)
    found = {name: {"accuracy": statistics.fmean(each)} for name, each in right.items()}
    for name in READINGS:
        paired = [a - b for a, b in zip(right[name], right["head"], strict=True)]
        found[name]["minus_head"] = statistics.fmean(paired)
        found[name]["standard_error"] = statistics.stdev(paired) / len(paired) ** 0.5
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["ours"]:
        recipe_run(sys.argv[2], sys.argv[3:])
    else:
        main(tyro.cli(Args))
