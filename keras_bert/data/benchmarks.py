"""GLUE's nine tasks and CLUE's plain ones: where their columns are, their metric, their answers."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from keras_bert.data.tables import Columns, LabelledText, read_labelled_texts, read_records
from keras_bert.files import write_text


class BenchmarkTask(NamedTuple):
    """What is particular about a benchmark's task.

    Attributes:
        columns: Names of its columns.
        metric: The score that chooses the best epoch.
        answers: The file that its server takes.
        kind: "class" or "regression".
        unnamed: Numbers of its columns, from 1, in its files without a line of names.
        skip_short: Whether its files hold broken rows, which everyone leaves out.
    """

    columns: Columns
    metric: str
    answers: str
    kind: str = "class"
    unnamed: Columns = Columns()  # noqa: RUF009, RUF100 - it can't change
    skip_short: bool = False


SENTENCES = Columns("sentence1", "sentence2", "label")
# [GLUE](https://arxiv.org/abs/1804.07461), table 1; [CLUE](https://arxiv.org/abs/2004.05986),
# section 3.
TASKS = {
    "cola": BenchmarkTask(
        Columns("sentence", "", "label"), "matthews", "CoLA.tsv", unnamed=Columns("4", "", "2")
    ),
    "sst2": BenchmarkTask(Columns("sentence", "", "label"), "accuracy", "SST-2.tsv"),
    "mrpc": BenchmarkTask(Columns("#1 string", "#2 string", "quality"), "f1", "MRPC.tsv"),
    "qqp": BenchmarkTask(
        Columns("question1", "question2", "is_duplicate"), "f1", "QQP.tsv", skip_short=True
    ),
    "stsb": BenchmarkTask(
        Columns("sentence1", "sentence2", "score"), "spearman", "STS-B.tsv", kind="regression"
    ),
    "mnli": BenchmarkTask(Columns("sentence1", "sentence2", "gold_label"), "accuracy", "MNLI.tsv"),
    "qnli": BenchmarkTask(Columns("question", "sentence", "label"), "accuracy", "QNLI.tsv"),
    "rte": BenchmarkTask(SENTENCES, "accuracy", "RTE.tsv"),
    "wnli": BenchmarkTask(SENTENCES, "accuracy", "WNLI.tsv"),
    "tnews": BenchmarkTask(Columns("sentence", "", "label"), "accuracy", "tnews_predict.json"),
    "afqmc": BenchmarkTask(SENTENCES, "accuracy", "afqmc_predict.json"),
    "cmnli": BenchmarkTask(SENTENCES, "accuracy", "cmnli_predict.json"),
    "ocnli": BenchmarkTask(SENTENCES, "accuracy", "ocnli_predict.json"),
    "csl": BenchmarkTask(Columns("abst", "keyword", "label"), "accuracy", "csl_predict.json"),
}


def read_benchmark(
    path: str | os.PathLike[str], name: str, *, needs_labels: bool = True
) -> list[LabelledText]:
    """Reads a file of a task, as its benchmark hands it out.

    Raises:
        InputError: as `read_labelled_texts`.
    """
    task = TASKS[name]
    columns = task.columns
    if task.unnamed != Columns():
        header, _ = read_records(path)
        if columns.text not in [cell.lower() for cell in header]:
            columns = task.unnamed
    return read_labelled_texts(
        path,
        columns,
        kind=task.kind,
        is_pair=bool(columns.pair),
        needs_labels=needs_labels,
        skip_short=task.skip_short,
    )


def write_answers(
    folder: pathlib.Path,
    name: str,
    rows: Sequence[LabelledText],
    predicted: Sequence[Any],
    test_file: str | os.PathLike[str] = "",
) -> pathlib.Path:
    """Writes the predictions for a test file as the benchmark's server takes them.

    GLUE: a table `index`, `prediction`; CLUE: an object a line with `id` and `label`. MNLI has
    two test files, told apart by their names. STS-B's scores are cut to 0 to 5.

    Args:
        folder: Where to; it's made.
        name: The task.
        rows: Of the test file.
        predicted: A class's name or a number for each.
        test_file: Its name.

    Returns:
        The path of the file.
    """
    task = TASKS[name]
    answers = task.answers
    if name == "mnli":
        answers = "MNLI-mm.tsv" if "mismatched" in os.fspath(test_file) else "MNLI-m.tsv"
    if task.kind == "regression":
        predicted = [f"{min(max(value, 0.0), 5.0):.3f}" for value in predicted]
    pairs = list(zip([row.name for row in rows], predicted, strict=True))
    if answers.endswith(".tsv"):
        lines = ["index\tprediction", *(f"{index}\t{label}" for index, label in pairs)]
    else:
        lines = [
            json.dumps({"id": int(index) if index.isdecimal() else index, "label": label})
            for index, label in pairs
        ]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / answers, "\n".join(lines) + "\n")
    return folder / answers
