r"""All comparisons with peers in a row, as a table and a plot: what `nox -s bench` runs.

    python benchmarks/results.py --data DATA --weights MODEL --peers-python VENV/bin/python

A slice takes an hour: 1,000 examples of each task, 5 steps, 2,000 sentences, one process a side;
`--full` takes all of it, in three rounds, and hours. Each part is a script of this folder, which
says what is compared with what, and `--parts` runs some of them. What they find is kept in
results.json, so that the others' lines stay, and RESULTS.md and results.svg are written from it.
Nothing else may run meanwhile.

DATA is the folder of the data sets, MODEL that of a Hugging Face checkpoint (MiniLM-L6).
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import matplotlib as mpl
import tyro

from keras_bert import machine

HERE = pathlib.Path(__file__).resolve().parent
BEGIN, END = "<!-- measured -->\n", "<!-- end of what's measured -->\n"


@dataclasses.dataclass(frozen=True)
class Args:
    """Compare everything with peers and write RESULTS.md."""

    data: str
    """Folder of the data sets."""
    weights: str
    """Folder of a Hugging Face checkpoint."""
    peers_python: str = sys.executable
    """The Python that has torch, transformers, tokenizers, onnx and onnxruntime."""
    full: bool = False
    """Everything, in three rounds, in place of a slice in one."""
    parts: tuple[str, ...] = ()
    """Which of them; none named: all."""
    output_dir: str = str(HERE)
    """Where results.json, RESULTS.md and results.svg go."""


class Line(NamedTuple):
    """A row of the table: ours, the peers, and how many times as fast as one of them ours is."""

    work: str
    unit: str
    ours: float
    peers: dict[str, float]
    against: str
    ratio: float
    goal: float | None = None


class Part(NamedTuple):
    """A script, its arguments beside those of a slice or of everything, and its lines."""

    script: str
    arguments: Callable[[Args], list[str]]
    slice: list[str]
    full: list[str]
    lines: Callable[[dict[str, Any]], Iterator[Line]]


def main(args: Args) -> None:
    """Runs the parts, one after the other; a part's numbers are kept as soon as it has ended."""
    output = pathlib.Path(args.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    kept = output / "results.json"
    results = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for name in args.parts or PARTS:
        part = PARTS[name]
        command = [sys.executable, str(HERE / part.script), *part.arguments(args)]
        command += part.full if args.full else part.slice
        print(f"{name}: {part.script}", flush=True)
        # On the CPU alone: the peers' scripts use no other device.
        environment = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment |= {"CUDA_VISIBLE_DEVICES": "-1"}
        found = subprocess.run(  # noqa: S603 - a script of this folder
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        results[name] = {
            "full": args.full,
            "date": datetime.date.today().isoformat(),
            "machine": f"{machine.cpu_name()}, {machine.cores()} cores",
            "found": json.loads(found.strip().split("\n")[-1]),
        }
        kept.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        write(results, output)


def write(results: dict[str, Any], output: pathlib.Path) -> None:
    """RESULTS.md, of which only what stands between two marks is written anew, and the plot."""
    lines = {name: list(PARTS[name].lines(each["found"])) for name, each in results.items()}
    table = [
        "| work | unit | ours | peers | ours is | goal |",
        "|---|---|---|---|---|---|",
        *(row(line) for name in PARTS if name in lines for line in lines[name]),
        "",
        "| part | what ran | on | machine |",
        "|---|---|---|---|",
        *(
            f"| {name} | {'all' if x['full'] else 'slice'} | {x['date']} | {x['machine']} |"
            for name, x in results.items()
        ),
    ]
    path = output / "RESULTS.md"
    text = path.read_text(encoding="utf-8") if path.exists() else f"# Results\n\n{BEGIN}{END}"
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"{path} must have one line {BEGIN.strip()} and one {END.strip()}.")
    before, after = text.split(BEGIN)[0], text.split(END)[-1]
    path.write_text(before + BEGIN + "\n".join(table) + "\n" + END + after, encoding="utf-8")
    plot([line for name in PARTS for line in lines.get(name, [])], output / "results.svg")


def row(line: Line) -> str:
    """A line of the table in Markdown."""
    peers = ", ".join(f"{name} {number:,.4g}" for name, number in line.peers.items())
    goal = "" if line.goal is None else f"{line.goal:g} x"
    ratio = f"{line.ratio:.2f} x {line.against}"
    met = line.goal is not None and line.ratio >= line.goal
    ratio = f"**{ratio}**" if met else ratio
    return f"| {line.work} | {line.unit} | {line.ours:,.4g} | {peers} | {ratio} | {goal} |"


def plot(lines: list[Line], path: pathlib.Path) -> None:
    """A bar for each line, a mark at its goal."""
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "results"  # the same picture from the same numbers
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.32 * len(lines) + 1), layout="constrained")
    names = [f"{line.work}: {line.against}" for line in lines]
    ratios = [line.ratio for line in lines]
    colors = ["#2b6cb0" if ratio >= 1 else "#c05621" for ratio in ratios]
    axes.barh(range(len(lines)), ratios, color=colors)
    for place, line in enumerate(lines):
        if line.goal is not None:
            axes.plot([line.goal] * 2, [place - 0.4, place + 0.4], color="black")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(lines)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast as the peer (black: the goal)")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def of_sides(
    work: str, found: dict[str, Any], rate: str, unit: str, goal: float | None
) -> Iterator[Line]:
    """Lines of what `sides.compared` gives: each of our sides against the fastest peer."""
    medians = {side: numbers[rate][0] for side, numbers in found["sides"].items()}
    peers = {side: x for side, x in medians.items() if not side.startswith("ours")}
    for side, ratio in found["ratio"].items():
        name = work if side == "ours" else f"{work} ({side.removeprefix('ours_')})"
        yield Line(name, unit, medians[side], peers, found["fastest_peer"], ratio, goal)


STEPS = {
    "finetuning float32": ("fine-tuning step, Base, 8 x 128", 1.15),
    "finetuning bfloat16": ("fine-tuning step, Base, 8 x 128, bfloat16", 1.25),
    "pretraining_128 float32": ("pretraining step, Base, 8 x 128", 1.3),
    "pretraining_128 bfloat16": ("pretraining step, Base, 8 x 128, bfloat16", 1.3),
    "pretraining_512 float32": ("pretraining step, Base, 2 x 512", 1.3),
    "pretraining_512 bfloat16": ("pretraining step, Base, 2 x 512, bfloat16", 1.3),
}


def step_lines(found: dict[str, Any]) -> Iterator[Line]:
    """Steps, then what they say of imports, of the first step and of memory."""
    for name, (work, goal) in STEPS.items():
        if name in found:
            yield from of_sides(work, found[name], "sequences_per_second", "sequences/s", goal)
            ours = found[name]["sides"]["ours"]
            rate, most = ours["gflops"][0], ours["matrix_gflops"][0]
            peers = {"matrix products": most}
            share = "matrix products"
            yield Line(f"{work}, use of the cores", "GFLOP/s", rate, peers, share, rate / most)
    if "finetuning float32" in found:
        sides = found["finetuning float32"]["sides"]
        for name, work, unit in (
            ("import_seconds", "import", "s"),
            ("first_step_seconds", "start to first step", "s"),
            ("peak_megabytes", "peak memory of a Base step", "MB"),
        ):
            medians = {side: numbers[name][0] for side, numbers in sides.items()}
            own = medians.pop("ours")
            best = min(medians, key=lambda side: medians[side])
            yield Line(work, unit, own, medians, best, medians[best] / own, 1)


def rate_lines(work: str, goal: float | None) -> Callable[[dict[str, Any]], Iterator[Line]]:
    """Lines of pretraining_rate.py."""
    return lambda found: of_sides(work, found, "real_tokens_per_second", "real tokens/s", goal)


def epoch_lines(found: dict[str, Any]) -> Iterator[Line]:
    """An epoch from text to score: seconds, each peer by itself."""
    goals = {"hf": 1.8, "hf_grouped": 1.1, "keras_hub": 3.0}
    for name, each in found.items():
        seconds = {side: x["seconds"]["median"] for side, x in each["sides"].items()}
        own = seconds.pop("ours")
        for side, theirs in seconds.items():
            work = f"{name.replace('epoch ', '')}, an epoch from text to score"
            yield Line(work, "s", own, {side: theirs}, side, theirs / own, goals[side])


def serving_lines(found: dict[str, Any]) -> Iterator[Line]:
    """Throughput, and latency the other way round; the peers are in float32."""
    peers = {name: x for name, x in found.items() if not name.startswith(("ours", "litert"))}
    for side in ("ours", "ours_bfloat16"):
        if side not in found:
            continue
        form, goal = ("", (1.2, 1)) if side == "ours" else (", bfloat16", (None, None))
        rates = {name: x["texts_per_second"] for name, x in peers.items()}
        best = max(rates, key=lambda name: rates[name])
        own = found[side]["texts_per_second"]
        yield Line(
            f"serving, batch 32{form}", "texts/s", own, rates, best, own / rates[best], goal[0]
        )
        times = {name: x["milliseconds"] for name, x in peers.items()}
        best = min(times, key=lambda name: times[name])
        own = found[side]["milliseconds"]
        yield Line(f"serving, batch 1{form}", "ms", own, times, best, times[best] / own, goal[1])


def pretraining_rate(
    text: str, vocabulary: str, length: int, rows: int, document_break: str, work: str
) -> Part:
    """A part that pretrains on a text."""

    def arguments(args: Args) -> list[str]:
        found = ["--input", f"{args.data}/pretraining/{text}", "--document-break", document_break]
        found += ["--vocabulary", f"{args.data}/vocab/{vocabulary}/vocab.txt"]
        found += ["--max-sequence-length", str(length), "--rows", str(rows)]
        return [*found, "--peers-python", args.peers_python]

    goal = 1.5 if length == 512 else None
    lines = rate_lines(f"pretraining, {work}, length {length}", goal)
    return Part("pretraining_rate.py", arguments, ["--steps", "5", "--rounds", "1"], [], lines)


def of_weights(*texts: str) -> Callable[[Args], list[str]]:
    """Arguments of the scripts that read sentences."""

    def arguments(args: Args) -> list[str]:
        found = ["--weights", args.weights, "--peers-python", args.peers_python, "--texts"]
        return [*found, *(f"{args.data}/text_classification/{each}.tsv" for each in texts)]

    return arguments


def epoch_arguments(args: Args) -> list[str]:
    """Arguments of finetuning.py."""
    found = ["--data", args.data, "--weights", args.weights, "--measure", "epoch"]
    found += ["--peers-python", args.peers_python, "--tasks", "classify", "tag", "pair", "qa"]
    return [*found, "--output-dir", "runs/bench"]


ENGLISH = ("en_wikitext2_valid.txt", "bert-base-uncased")
CHINESE = ("zh_wikipedia_cmrc_trial.txt", "bert-base-chinese")
SENTENCES = ("mr_sentence_polarity/train", "banking77/train")
PARTS = {
    "steps": Part(
        "training_step.py",
        lambda args: ["--peers-python", args.peers_python],
        ["--steps", "5", "--rounds", "1"],
        [],
        step_lines,
    ),
    "epochs": Part(
        "finetuning.py",
        epoch_arguments,
        ["--examples", "1000", "--rounds", "1"],
        ["--examples", "0", "--rounds", "3"],
        epoch_lines,
    ),
    "wikitext_128": pretraining_rate(*ENGLISH, 128, 8, "heading", "WikiText"),
    "wikitext_512": pretraining_rate(*ENGLISH, 512, 2, "heading", "WikiText"),
    "chinese_512": pretraining_rate(*CHINESE, 512, 2, "blank", "Chinese Wikipedia"),
    "prediction": Part(
        "prediction.py",
        of_weights(*SENTENCES),
        ["--limit", "2000", "--rounds", "1"],
        [],
        lambda found: of_sides("predicting sentences", found, "texts_per_second", "texts/s", 1.3),
    ),
    "serving": Part(
        "serving.py",
        of_weights("mr_sentence_polarity/dev"),
        ["--rounds", "1"],
        [],
        serving_lines,
    ),
}


if __name__ == "__main__":
    main(tyro.cli(Args))
