r"""The whole path on real text, from nothing to an answered query, in minutes on a laptop.

    python recipes/quickstart.py --output-dir runs/quickstart

The text is the English help that every Python carries (`pydoc_data.topics`). Each step is one
of the other recipes, run by the command that's printed: a vocabulary, pretraining examples, a
tiny BERT pretrained on them, a classifier that tells which of the eight longest help topics
(without excerpts of others) a sentence comes from, and a SavedModel, which a fresh process that
imports TensorFlow alone asks about a held-out sentence.

Expect: 3 to 5 minutes on two CPU cores; accuracy 0.68, the commonest topic's share is 0.25.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import pydoc_data.topics
import random
import re
import subprocess
import sys
import time
from typing import Any

import rich.console
import rich.table

import keras_bert
from keras_bert import recipe
from keras_bert.data.documents import split_sentences
from keras_bert.errors import InputError
from keras_bert.evaluation import masked_examples
from keras_bert.files import write_json, write_text
from keras_bert.report import Examples, Table, Text, history_curves, write_report
from keras_bert.training import callbacks

RECIPES = pathlib.Path(__file__).resolve().parent
NUM_TOPICS = 8
SCORES = (
    "accuracy",
    "commonest_class_share",
    "masked_lm_loss",
    "masked_lm_accuracy",
    "next_sentence_accuracy",
    "seconds",
)
HELD_OUT = 0.2
RULE = re.compile(r"[-=*+|]{3}|([-=*+|] ){3}")
PROSE = re.compile(r"[A-Z][\w ,]{40,160}\.")  # a sentence that anyone can read
QUERY = """
import json, sys
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
answer = model.signatures["text"](text=tf.constant([sys.argv[2]]))
print(json.dumps([answer["label"][0].numpy().decode(), float(answer["score"][0])]))
"""


@dataclasses.dataclass(frozen=True)
class Args:
    """The whole path on real text, from nothing to an answered query."""

    output_dir: str
    """Where everything goes."""
    vocabulary_size: int = 4000
    """Tokens of the vocabulary."""
    pretraining_steps: int = 1000
    """Updates of pretraining."""
    epochs: int = 12
    """Passes of fine-tuning."""
    seed: int = 0
    """For everything that's random."""
    overwrite: bool = False
    """Replace the run in `output_dir`."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    started = time.perf_counter()
    if args.vocabulary_size < 500 or min(args.pretraining_steps, args.epochs) < 1:
        raise InputError(
            "--vocabulary-size must be at least 500, --pretraining-steps and --epochs at least 1. "
            f"Received: {args.vocabulary_size}, {args.pretraining_steps}, {args.epochs}."
        )
    if not 0 <= args.seed < 2**32:
        raise InputError(f"--seed must be from 0 to {2**32 - 1}. Received: {args.seed}.")
    folder = recipe.start_run(args.output_dir, args, overwrite=args.overwrite)
    console = rich.console.Console()

    # ---- Data ------------------------------------------------------------------
    documents = help_topics()
    train, dev = labelled_sentences(documents, args.seed)
    held_out = {sentence for _, sentence in dev}
    write_text(folder / "corpus.txt", corpus(documents, held_out))
    for name, rows in (("train.tsv", train), ("dev.tsv", dev)):
        table = ["label\ttext", *(f"{label}\t{sentence}" for label, sentence in rows)]
        write_text(folder / name, "\n".join(table) + "\n")
    text = ["--input", folder / "corpus.txt"]
    run(
        console,
        "train_vocabulary.py",
        [*text, "--vocabulary-size", args.vocabulary_size, "--output", folder / "vocab.txt"],
    )
    run(
        console,
        "create_pretraining_data.py",
        [
            *text,
            *("--vocabulary", folder / "vocab.txt", "--output-dir", folder / "records"),
            *("--dev-documents", 4, "--seed", args.seed),
        ],
    )

    # ---- Model -----------------------------------------------------------------
    run(
        console,
        "pretrain.py",
        [
            *("--data", folder / "records", "--dev-data", folder / "records" / "dev"),
            *("--size", "tiny", "--steps", args.pretraining_steps, "--batch-size", 32),
            *("--learning-rate", 2e-3, "--warmup-ratio", 0.1, "--seed", args.seed),
            *("--output-dir", folder / "pretraining"),
        ],
    )

    # ---- Train -----------------------------------------------------------------
    run(
        console,
        "finetune_classifier.py",
        [
            *("--checkpoint", folder / "pretraining" / "preset"),
            *("--train-file", folder / "train.tsv", "--dev-file", folder / "dev.tsv"),
            *("--epochs", args.epochs, "--learning-rate", 1e-3, "--seed", args.seed),
            *("--output-dir", folder / "classifier"),
        ],
    )

    # ---- Save ------------------------------------------------------------------
    run(
        console,
        "export.py",
        [
            *("--checkpoint", folder / "classifier" / "preset"),
            *("--output-dir", folder / "export"),
        ],
    )
    label, sentence = next(row for row in dev if PROSE.fullmatch(row[1]))
    console.rule("[bold]query, by a process that imports tensorflow alone")
    answer, score = ask(folder / "export" / "1", sentence)
    pretraining, classifier = metrics_of(folder / "pretraining"), metrics_of(folder / "classifier")
    metrics = {
        "accuracy": classifier["accuracy"],
        "commonest_class_share": classifier["commonest_class_share"],
        "masked_lm_accuracy": pretraining["masked_lm_accuracy"],
        "next_sentence_accuracy": pretraining["next_sentence_accuracy"],
        "masked_lm_loss": pretraining["masked_lm_loss"],
        "query": sentence,
        "answer": answer,
        "right_answer": label,
        "answer_score": round(score, 4),
        "seconds": round(time.perf_counter() - started, 1),
    }
    write_json(folder / "metrics.json", metrics)
    report(folder, metrics)
    show(console, metrics, folder)
    return metrics


def help_topics() -> dict[str, list[str]]:
    """Python's help: topic -> its paragraphs, each on one line."""
    topics = {}
    for name, text in sorted(pydoc_data.topics.topics.items()):
        paragraphs = (re.sub(r"\s+", " ", part).strip() for part in re.split(r"\n\s*\n", text))
        topics[name] = [paragraph for paragraph in paragraphs if paragraph]
    return topics


def labelled_sentences(
    documents: dict[str, list[str]], seed: int
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(topic, sentence) of the longest topics, in random order: to train on, and held out."""
    size = {name: sum(map(len, paragraphs)) for name, paragraphs in documents.items()}
    topics_of: dict[str, set[str]] = {}
    chosen: list[str] = []
    for name in sorted(size, key=size.__getitem__, reverse=True):
        sentences = [s for paragraph in documents[name] for s in split_sentences(paragraph)]
        # Some topics are excerpts of longer ones, and have next to nothing of their own.
        if sum(sentence in topics_of for sentence in sentences) > len(sentences) / 2:
            continue
        for sentence in sentences:
            topics_of.setdefault(sentence, set()).add(name)
        chosen.append(name)
        if len(chosen) == NUM_TOPICS:
            break
    # A sentence of several topics has no one right answer; the shortest are headings and code.
    # Rules and tables aren't sentences.
    rows = [
        (min(names), sentence)
        for sentence, names in topics_of.items()
        if len(names) == 1 and len(sentence) >= 30 and not RULE.search(sentence)
    ]
    random.Random(seed).shuffle(rows)
    num_held_out = round(HELD_OUT * len(rows))
    return rows[num_held_out:], rows[:num_held_out]


def corpus(documents: dict[str, list[str]], held_out: set[str]) -> str:
    """A document a topic, a sentence a line, a blank line between; held-out ones left out."""
    parts = []
    for paragraphs in documents.values():
        sentences = [s for paragraph in paragraphs for s in split_sentences(paragraph)]
        kept = [s for s in sentences if s not in held_out and not RULE.search(s)]
        parts.append("\n".join(kept))
    return "\n\n".join(part for part in parts if part) + "\n"


def run(console: rich.console.Console, name: str, arguments: list[Any]) -> None:
    """Runs another recipe as its own process, on this terminal."""
    words = [str(argument) for argument in arguments]
    console.rule(f"[bold]{name}")
    console.print("python", f"recipes/{name}", *words, style="dim", highlight=False)
    command = [sys.executable, str(RECIPES / name), *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        pass_on(process)
    if process.returncode:
        sys.exit(process.returncode)  # The recipe has said why.


def ask(saved_model: pathlib.Path, sentence: str) -> tuple[str, float]:
    """The exported model's answer, from a process of its own: label and probability."""
    command = [sys.executable, "-c", QUERY, str(saved_model), sentence]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        pass_on(process)
        output = process.stdout.read() if process.stdout else ""
    label, score = json.loads(output)
    return label, score


def pass_on(process: subprocess.Popen[str]) -> None:
    """Shows what a process complains about, without TensorFlow's notes on the machine."""
    for line in process.stderr or ():
        if not re.match(r"[IWE]\d{4} |WARNING: All log messages", line):
            print(line, end="", file=sys.stderr)


def metrics_of(folder: pathlib.Path) -> dict[str, Any]:
    """What a training recipe measured."""
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def report(folder: pathlib.Path, metrics: dict[str, Any]) -> None:
    """The whole path on one page."""
    pretraining = callbacks.read_history(folder / "pretraining" / "history.csv")
    classifier = callbacks.read_history(folder / "classifier" / "history.csv")
    preset = keras_bert.load(folder / "pretraining" / "preset")
    dev = keras_bert.data.pretraining(folder / "records" / "dev", 8, training=False)
    answer = f"Answer: {metrics['answer']} ({metrics['answer_score']:.0%})."
    right = f"Right: {metrics['right_answer']}."
    scores = [(name, metrics[name]) for name in SCORES]
    write_report(
        folder / "report.html",
        "Quickstart: from Python's help to an answered query",
        [
            Table("Scores on held-out text", ("name", "value"), scores),
            Text(
                "A held-out sentence, asked of the exported model",
                (metrics["query"], answer, right),
            ),
            history_curves("Pretraining: loss", pretraining, "loss", "nats"),
            history_curves("Pretraining: accuracy", pretraining, "accuracy", "share"),
            Examples(
                "Masked examples with the model's guesses",
                masked_examples(preset.model, dev, preset.tokenizer),
            ),
            history_curves("Classifier: loss", classifier, "loss", "nats"),
            history_curves("Classifier: accuracy", classifier, "accuracy", "share"),
        ],
    )


def show(console: rich.console.Console, metrics: dict[str, Any], folder: pathlib.Path) -> None:
    """The end of the run, as a short table."""
    table = rich.table.Table(show_header=False)
    for name, value in metrics.items():
        table.add_row(name.replace("_", " "), str(value))
    console.print(table)
    console.print(f"Report: {folder / 'report.html'}", soft_wrap=True)


if __name__ == "__main__":
    recipe.run(main, Args)
