r"""Fine-tuning beside Hugging Face's: the same start, splits, rate, batches and epochs.

    python benchmarks/finetuning.py --data DATA --weights MODEL --tasks classify pair sts tag qa \
        --yardstick hf_finetune.py --yardstick-python VENV/bin/python --output-dir runs/finetuning

`quality` runs our recipes with three seeds. `speed` runs both on the same first examples (1,500;
500 of `qa`) in turn, three times, each as a process of its own, and takes the ratio of the medians
of the seconds of training. `long` reads 300 film reviews of some 700 words by their head, by head
and tail, and in windows, in five folds; an accuracy's difference comes with the standard error of
its mean over the texts, which are the same for all.

The last line is a JSON object of everything; DATA holds the splits' folders, MODEL is the folder of
a Hugging Face checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
from typing import NamedTuple

import tyro

RECIPES = pathlib.Path(__file__).resolve().parents[1] / "recipes"


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
    """What to measure: quality, speed, long."""
    tasks: tuple[str, ...] = tuple(TASKS)
    """Of quality and speed."""
    yardstick: str = ""
    """Script to compare speed with: TASK SEED --limit N, prints a JSON line."""
    yardstick_python: str = sys.executable
    """The Python that has what it needs."""
    seeds: int = 3
    """Runs of each task."""
    repeats: int = 3
    """Runs of each side, for speed."""


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
    if "long" in args.measure:
        results["long"] = long_texts(args, output)
    print(json.dumps(results))


def speed(args: Args, task: str, output: pathlib.Path) -> dict:
    """Seconds of training on the first rows, in turn, so that both meet the same machine."""
    train = cut(args, task, output)
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


def cut(args: Args, task: str, output: pathlib.Path) -> pathlib.Path:
    """A task's first examples, in a file like the one they come from."""
    source = pathlib.Path(args.data) / TASKS[task].files.format("train")
    text, count = source.read_text(encoding="utf-8"), TASKS[task].examples
    if task == "qa":
        text = first_questions(text, count)
    elif task == "tag":
        text = "\n\n".join(re.split(r"\n\s*\n", text)[:count]) + "\n"
    else:
        text = "\n".join(text.split("\n")[: count + 1]) + "\n"
    path = output / f"{task}-{count}{source.suffix}"
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
    """A run of our recipe with the yardstick's settings; of flags given twice the last counts."""
    data, files = pathlib.Path(args.data), TASKS[task].files
    command = [sys.executable, str(RECIPES / f"{TASKS[task].recipe}.py")]
    command += ["--checkpoint", args.weights, "--learning-rate", "5e-5", *TASKS[task].flags]
    command += ["--epochs", str(TASKS[task].epochs), "--batch-size", str(TASKS[task].batch_size)]
    command += ["--train-file", str(data / files.format("train"))]
    command += ["--dev-file", str(data / files.format("dev"))]
    return last_line([*command, "--output-dir", str(folder), *more, "--overwrite"], {})


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
    main(tyro.cli(Args))
