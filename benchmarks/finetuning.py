r"""Fine-tuning beside Hugging Face's: the same start, splits, rate, batches and epochs.

    python benchmarks/finetuning.py --data DATA --weights MODEL --tasks classify pair sts \
        --yardstick hf_finetune.py --yardstick-python VENV/bin/python --output-dir runs/finetuning

`quality` runs our recipes with three seeds. `speed` runs both on the same 1,500 examples in turn,
three times, each as a process of its own, and takes the ratio of the medians of the seconds of
training. `long` reads 300 film reviews of some 700 words by their head, by head and tail, and in
windows, in five folds; an accuracy's difference comes with the standard error of its mean over the
texts, which are the same for all.

The last line is a JSON object of everything; DATA holds the splits' folders, MODEL is the folder of
a Hugging Face checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys

import tyro

RECIPES = pathlib.Path(__file__).resolve().parents[1] / "recipes"
FILES = {
    "classify": ("text_classification/mr_sentence_polarity/{}.tsv", "finetune_classifier"),
    "pair": ("benchmark/snli/{}.tsv", "finetune_pairs"),
    "sts": ("sentence_pair/stsb_open/en.{}.tsv", "finetune_pairs"),
}
METRICS = {"classify": "accuracy", "pair": "accuracy", "sts": "spearman"}
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
    tasks: tuple[str, ...] = ("classify", "pair", "sts")
    """Of quality and speed."""
    yardstick: str = ""
    """Script to compare speed with: TASK SEED --limit N, prints a JSON line."""
    yardstick_python: str = sys.executable
    """The Python that has what it needs."""
    seeds: int = 3
    """Runs of each task."""
    repeats: int = 3
    """Runs of each side, for speed."""
    limit: int = 1500
    """Examples, for speed."""
    epochs: int = 3
    """Passes over the training file."""


def main(args: Args) -> None:
    output = pathlib.Path(args.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict] = {}
    for task in args.tasks:
        if "quality" in args.measure:
            folder = output / f"quality-{task}"
            metrics = ours(args, task, folder, ["--seeds", str(args.seeds)])
            results[f"quality {task}"] = {
                "metric": METRICS[task],
                "mean": metrics[METRICS[task]],
                "seeds": [each[METRICS[task]] for each in metrics.get("seeds", [metrics])],
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
            command += ["--limit", str(args.limit), "--epochs", str(args.epochs)]
            environment = {"WEIGHTS": args.weights, "DATA": args.data}
            seconds["yardstick"].append(last_line(command, environment)["train_seconds"])
        print(task, seconds, flush=True)
    medians = {name: statistics.median(each) for name, each in seconds.items() if each}
    ratio = {"ratio": round(medians["ours"] / medians["yardstick"], 3)} if args.yardstick else {}
    return {"seconds": seconds, "medians": medians} | ratio


def cut(args: Args, task: str, output: pathlib.Path) -> pathlib.Path:
    """The first rows of a task's training file, under their names."""
    source = pathlib.Path(args.data) / FILES[task][0].format("train")
    lines = source.read_text(encoding="utf-8").split("\n")[: args.limit + 1]
    path = output / f"{task}-{args.limit}.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def ours(args: Args, task: str, folder: pathlib.Path, more: list[str]) -> dict:
    """A run of our recipe with the yardstick's settings."""
    files, recipe = FILES[task]
    data = pathlib.Path(args.data)
    flags = {"--learning-rate": "5e-5", "--batch-size": "32", "--epochs": str(args.epochs)}
    flags |= {"--train-file": str(data / files.format("train"))}
    flags |= {"--dev-file": str(data / files.format("dev")), "--output-dir": str(folder)}
    flags |= dict(zip(more[::2], more[1::2], strict=True))
    command = [sys.executable, str(RECIPES / f"{recipe}.py"), "--checkpoint", args.weights]
    command += [word for flag in flags.items() for word in flag]
    return last_line([*command, *(["--regression"] if task == "sts" else []), "--overwrite"], {})


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
            command += ["--epochs", str(args.epochs), "--learning-rate", "5e-5"]
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
