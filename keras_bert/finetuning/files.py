"""What a run leaves: tables of predictions and a report."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from keras_bert import recipe
from keras_bert.files import write_json, write_text
from keras_bert.report import Curves, Section, Table, history_curves, write_report
from keras_bert.training import callbacks


def write_predictions(folder: pathlib.Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes `predictions.tsv` and `predictions.json`, a row an example, in file order.

    The rows' keys are the columns; a row may lack some. A table has no room for what isn't plain:
    there, tabs and line breaks in a text become spaces, and a dict or list its JSON.
    """

    def cell(value: Any) -> str:
        if isinstance(value, (dict, list, tuple)):
            value = json.dumps(value, ensure_ascii=False)
        text = "" if value is None else str(value)
        return text.replace("\t", " ").replace("\r", " ").replace("\n", " ")

    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["\t".join(columns)]
    lines += ["\t".join(cell(row.get(name)) for name in columns) for row in rows]
    write_text(folder / "predictions.tsv", "\n".join(lines) + "\n")
    write_json(folder / "predictions.json", list(rows))


def write_run_report(
    folder: pathlib.Path,
    title: str,
    args: Any,
    metrics: dict[str, Any],
    sections: Sequence[Section] = (),
    loss_unit: str = "nats",
) -> None:
    """Writes `report.html`: scores, seeds, search and curves, then the recipe's own sections."""
    plain = {
        name: _shown(value)
        for name, value in metrics.items()
        if not isinstance(value, (list, dict))
    }
    several = "Means over the seeds. " if "seeds" in metrics else ""
    note = f"{several}On the dev file, at the epoch that's best on that same file."
    parts: list[Section] = [Table("Scores", ("name", "value"), list(plain.items()), note=note)]
    if "test" in metrics:
        tested = [(name, _shown(value)) for name, value in metrics["test"].items()]
        parts.append(Table("Scores on the test file", ("name", "value"), tested))
    for name, heading in (("seeds", "Seeds"), ("search", "Search")):
        if name in metrics:
            columns = tuple(dict.fromkeys(key for each in metrics[name] for key in each))
            rows = [[_shown(each.get(key)) for key in columns] for each in metrics[name]]
            parts.append(Table(heading, columns, rows))
    history = callbacks.read_history(folder / "history.csv")
    losses = history_curves("Loss", history, "loss", loss_unit)
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


def _shown(value: Any) -> Any:
    return "–" if value is None else value
