"""What classifying texts and classifying pairs share: the model, scores, predictions, a report.

A task is of one of three kinds: "class", one of C; "labels", any of C; "regression", a number.
"""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_bert import scores, tasks
from keras_bert.answers import class_names, classification
from keras_bert.checkpoints import Preset
from keras_bert.errors import InputError
from keras_bert.evaluation import cross_entropy, sigmoid
from keras_bert.files import write_json
from keras_bert.finetuning import (
    keep_head,
    rounded,
    start_encoder,
    write_predictions,
    write_run_report,
)
from keras_bert.report import Matrix, Section, Table

LOSSES = {
    "class": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "labels": keras.losses.BinaryCrossentropy(from_logits=True),
    "regression": keras.losses.MeanSquaredError(),
}
METRICS = {"class": "accuracy", "labels": "f1", "regression": "spearman"}
SCORES = {
    "class": ("accuracy", "f1", "f1_macro", "matthews"),
    "labels": ("accuracy", "f1", "f1_macro"),
    "regression": ("pearson", "spearman"),
}
SHOWN = 20  # classes of a confusion matrix, and errors


def build(
    args: Any,
    base: Preset,
    labels: Sequence[str],
    settings: dict[str, Any],
    scale: tuple[float, float] = (0.0, 1.0),
) -> tuple[Preset, keras.Model]:
    """A new classifier to predict with, and its packed form, on the same weights, to train.

    Without labels it's a regression, on targets that `scale` standardises. A checkpoint that's a
    classifier of the same classes, or a regression as well, goes on with its own head.
    """
    encoder = start_encoder(args, base)
    model = tasks.text_classifier(encoder, max(1, len(labels)), packed=True)
    several = bool(settings.get("multi_label"))
    is_alike = bool(base.settings.get("multi_label")) == several
    if is_alike and keep_head(args, base, model, labels) and not labels:
        mean, std = scale
        fold_scale(model, (-mean / std, 1 / std))  # it predicts the numbers themselves
    plain = tasks.unpacked(model, encoder)
    preset = Preset(base.config, encoder, base.tokenizer, plain, tuple(labels), settings)
    return preset, model


def order_of(names: Sequence[str], base: Preset, is_given: bool = False) -> list[str]:
    """The classes in the order of the logits: that of a checkpoint with the same classes, if any.

    Args:
        names: The classes, in an order that was given or in that of the alphabet.
        base: The checkpoint.
        is_given: Whether the order was given.

    Raises:
        InputError: it was given, and isn't the checkpoint's.
    """
    if base.model.name != "text_classifier" or set(base.labels) != set(names):
        return list(names)
    if is_given and base.labels != tuple(names):
        raise InputError(
            f"--labels are in another order than the checkpoint's, {' '.join(base.labels)}: leave "
            "them out, or give its order."
        )
    return list(base.labels)


def fold_scale(model: keras.Model, scale: tuple[float, float]) -> None:
    """Makes a regression on standardised targets one on the targets: y std + mean.

    The head's kernel and bias take them in, so that predictions, checkpoints and exports know
    nothing of it.
    """
    mean, std = scale
    kernel, bias = model.get_layer("label").get_weights()
    model.get_layer("label").set_weights([kernel * std, bias * std + mean])


def scale_of(targets: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation; of a constant, 1."""
    return float(np.mean(targets)), float(np.std(targets)) or 1.0


def metric_of(kind: str, asked: str = "", usual: str = "") -> str:
    """The score that counts: the one asked for, or a benchmark's usual one, or the kind's.

    Raises:
        InputError: the kind has no such score.
    """
    metric = asked or usual or METRICS[kind]
    if metric not in SCORES[kind]:
        known = ", ".join(SCORES[kind])
        raise InputError(f"--metric must be one of {known} here. Received: {metric}.")
    return metric


def score(
    kind: str,
    logits: np.ndarray,
    true: Sequence[Any],
    labels: Sequence[str] = (),
    threshold: float = 0.5,
    std: float = 1.0,
) -> dict[str, float]:
    """All scores that a kind has, and the loss.

    Args:
        kind: See above.
        logits: float (N, C), or the numbers themselves, (N, 1).
        true: A name, a tuple of names or a number each.
        labels: Class names in the order of the logits. Of two, the second is the positive one of
            `f1`; of more, `f1` is the mean over the classes.
        threshold: Of the probability from which on a label holds.
        std: What a regression's errors are measured by: then the loss is that of training.
    """
    if kind == "regression":
        values = logits[:, 0].astype(np.float64)
        loss = float(np.mean(((values - true) / std) ** 2))
        return {
            "pearson": scores.pearson(true, values),
            "spearman": scores.spearman(true, values),
            "loss": loss,
        }
    if kind == "labels":
        holds = _holds(true, labels)
        losses = np.logaddexp(0, logits.astype(np.float64)) - holds * logits
        predicted = sigmoid(logits) >= threshold
        return {
            "accuracy": scores.accuracy(holds, predicted),
            "f1": scores.micro_f1(holds, predicted),
            "f1_macro": scores.macro_f1(holds, predicted, labels),
            "loss": float(losses.mean()),
        }
    indices = {name: i for i, name in enumerate(labels)}
    right = np.array([indices[name] for name in true])
    losses, _ = cross_entropy(logits, right)
    predicted = logits.argmax(axis=-1)
    macro = scores.macro_f1(right, predicted, range(len(labels)))
    return {
        "accuracy": scores.accuracy(right, predicted),
        "f1": scores.f1(right, predicted) if len(labels) == 2 else macro,
        "f1_macro": macro,
        "matthews": scores.matthews(right, predicted),
        "loss": float(losses.mean()),
    }


def threshold_of(
    kind: str, logits: np.ndarray, true: Sequence[Any], labels: Sequence[str]
) -> float:
    """The probability from which on a label holds: of the best micro F1, where there are several.

    The arguments are those of `score`.
    """
    if kind != "labels":
        return 0.5
    holds = _holds(true, labels)
    return scores.best_threshold(holds, sigmoid(logits))


def floor(kind: str, true: Sequence[Any], labels: Sequence[str], metric: str) -> float:
    """What the best single answer to everything scores by a metric."""
    if kind == "regression" or metric == "matthews":
        return 0.0
    rows, count = len(true), Counter(true)
    if metric == "accuracy":
        return max(count.values()) / rows  # of several labels: the commonest set of them
    if kind == "labels":
        count = Counter(name for names in true for name in names)
    # Precision is a label's share, recall is 1.
    each = {name: 2 * n / (rows + n) for name, n in count.items()}
    if kind == "class":
        is_binary = metric == "f1" and len(labels) == 2
        return each.get(labels[1], 0.0) if is_binary else max(each.values()) / len(each)
    if metric == "f1_macro":
        return sum(each.values()) / len(labels)  # of all labels to everything
    found, right = [0.0], 0
    for k, (_, n) in enumerate(count.most_common(), 1):  # of the k commonest labels
        right += n
        found.append(2 * right / (k * rows + count.total()))
    return max(found)


def predictions(
    kind: str, logits: np.ndarray, labels: Sequence[str] = (), threshold: float = 0.5
) -> list[Any]:
    """A name, a tuple of names or a number for each row of logits."""
    if kind == "regression":
        return logits[:, 0].tolist()
    if kind == "labels":
        holds = sigmoid(logits) >= threshold
        return [tuple(np.array(labels)[each].tolist()) for each in holds]
    return [labels[i] for i in logits.argmax(axis=-1)]


def prediction_rows(
    kind: str,
    logits: np.ndarray,
    rows: Sequence[Any],
    labels: Sequence[str] = (),
    threshold: float = 0.5,
) -> list[dict[str, Any]]:
    """What `write_predictions` takes: texts, labels where there are any, answers and scores."""
    found = []
    answers = predictions(kind, logits, labels, threshold)
    for row, answer, values in zip(rows, answers, logits, strict=True):
        entry = {"name": row.name, "text": row.text}
        if row.pair is not None:
            entry["pair"] = row.pair
        if row.label is not None:
            entry["label"] = row.label
        entry["prediction"] = answer
        if kind != "regression":
            best = classification(values, class_names(labels, len(values)), kind == "labels")
            entry |= {"score": best.score, "scores": best.scores}
        found.append(entry)
    return found


def report_sections(kind: str, entries: Sequence[dict[str, Any]], labels: Sequence[str]) -> list:
    """Who is taken for whom, and the errors that the model was surest of.

    Args:
        kind: See above.
        entries: From `prediction_rows`, with labels.
        labels: Class names.
    """
    texts = ["text", "pair"] if "pair" in entries[0] else ["text"]
    wrong = [each for each in entries if each["label"] != each["prediction"]]
    if kind == "regression":
        wrong.sort(key=lambda each: -abs(each["label"] - each["prediction"]))
        columns = [*texts, "label", "prediction"]
        rows = [[each[name] for name in columns] for each in wrong[:SHOWN]]
        return [Table("Largest errors", columns, rows)]
    sections: list[Section] = []
    if kind == "class":
        sections.append(confusions(entries, labels))
    else:
        true = _holds([each["label"] for each in entries], labels)
        found = _holds([each["prediction"] for each in entries], labels)
        columns_of = zip(labels, true.T, found.T, strict=True)
        by_label = [(name, scores.f1(t, f), int(t.sum())) for name, t, f in columns_of]
        sections.append(Table("Labels", ("label", "F1", "texts"), by_label))
    wrong.sort(key=lambda each: -each["score"])
    columns = [*texts, "label", "prediction", "score"]
    rows = [[_shown(each[name]) for name in columns] for each in wrong[:SHOWN]]
    sections.append(Table("Most confident errors", columns, rows))
    return sections


def leave_run(
    folder: pathlib.Path,
    title: str,
    args: Any,
    metrics: dict[str, Any],
    kind: str,
    labels: Sequence[str],
    threshold: float,
    dev: tuple[Sequence[Any], np.ndarray],
    test: tuple[Sequence[Any], np.ndarray] | None = None,
    std: float = 1.0,
) -> None:
    """Writes predictions, `metrics.json` and the report; a test file's scores join `metrics`.

    The predictions are those for the test file, if there's one, and else for the dev file.

    Args:
        folder: Of the run.
        title: Of the report.
        args: Of the best run.
        metrics: From `finetune`.
        kind: See above.
        labels: Class names.
        threshold: Of several labels.
        dev: Rows and their logits.
        test: The same, of a file that may have no labels, or not in every row.
        std: Of a regression's targets, as for `score`.
    """
    entries = prediction_rows(kind, dev[1], dev[0], labels, threshold)
    sections = report_sections(kind, entries, labels)
    if "seeds" not in metrics:  # mixed precision's were those of rounded logits
        true = [row.label for row in dev[0]]
        metrics |= rounded(score(kind, dev[1], true, labels, threshold, std))
    if kind == "class":
        share = floor(kind, [row.label for row in dev[0]], labels, "accuracy")
        metrics["commonest_class_share"] = round(share, 4)
    if test is not None:
        rows, logits = test
        entries = prediction_rows(kind, logits, rows, labels, threshold)
        known = [i for i, row in enumerate(rows) if row.label is not None]
        if known:
            true = [rows[i].label for i in known]
            metrics["test"] = rounded(score(kind, logits[known], true, labels, threshold, std))
        if 0 < len(known) < len(rows):
            print(f"{len(rows) - len(known)} rows of the test file have no label, and no score.")
    write_predictions(folder, entries)
    write_json(folder / "metrics.json", metrics)
    unit = "nats" if kind != "regression" else "variances of the training file's numbers"
    write_run_report(folder, title, args, metrics, sections, unit)
    print(f"Report: {folder / 'report.html'}")


def confusions(entries: Sequence[dict[str, Any]], labels: Sequence[str]) -> Matrix:
    """The confusion matrix of the classes that are most often taken for others, or others for."""
    counts = Counter((each["label"], each["prediction"]) for each in entries)
    errors: Counter[str] = Counter()
    for (true, guess), count in counts.items():
        if true != guess:
            errors.update({true: count, guess: count})
    chosen = labels
    if len(labels) > SHOWN:
        most = {name for name, _ in errors.most_common(SHOWN)}
        chosen = [name for name in labels if name in most]
    left_out = len(labels) - len(chosen)
    note = f"{left_out} classes with fewer errors aren't shown. " if left_out else ""
    return Matrix(
        "Confusions",
        chosen,
        [[counts[true, guess] for guess in chosen] for true in chosen],
        note=f"{note}A row for each true class, a column for each predicted one.",
    )


def _holds(true: Sequence[Any], labels: Sequence[str]) -> np.ndarray:
    """Which labels hold: bool (N, C)."""
    return np.array([[name in names for name in labels] for names in true])


def _shown(value: Any) -> Any:
    return ", ".join(value) if isinstance(value, tuple) else value
