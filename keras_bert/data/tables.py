"""Tables of labelled texts and pairs, in the formats people have: TSV, CSV and JSON lines."""

from __future__ import annotations

import itertools
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from keras_bert.data.table_files import read_records
from keras_bert.errors import InputError

# Names of columns, in lower case, in which texts, pairs, labels and names are looked for.
TEXTS = ("text", "sentence", "content", "review")
PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2")),
    *(("text1", "text2"), ("text_a", "text_b"), ("#1 string", "#2 string")),
    ("question", "sentence"),
)
LABELS = ("label", "labels", "gold_label", "category", "class", "score", "similarity", "quality")
NAMES = ("index", "id", "idx", "guid")
LARGEST = 1e37  # number to learn: float32 ends at 3.4e38, and differences must fit as well
NO_LABEL = "-"  # of pairs, where SNLI's and CLUE's annotators didn't agree


class LabelledText(NamedTuple):
    """A row of a table.

    `label` is a class's name; a tuple of names where a row has several; a float in a regression;
    None where the file has none. `pair` is the second text, or a tuple of choices. `name` is the
    row's in its file, or its number from 0.
    """

    label: Any
    text: str
    line: int
    pair: Any = None
    name: str = ""


class Columns(NamedTuple):
    """Where a table's parts are: names of columns, or numbers from 1 in a file without names.

    "" is to be found out by the usual names.
    """

    text: str = ""
    pair: str = ""
    label: str = ""


def read_labelled_texts(
    path: str | os.PathLike[str],
    columns: Columns = Columns(),  # noqa: B008 - it can't change
    *,
    kind: str = "class",
    is_pair: bool = False,
    needs_labels: bool = True,
    separator: str = ",",
    skip_short: bool = False,
) -> list[LabelledText]:
    r"""Reads a table of texts or pairs and their labels.

    The ending tells the format. `.csv` has quotes and commas (RFC 4180). `.jsonl` and `.json` have
    an object a line, whose keys are the columns. In any other file columns are separated by tabs,
    and a quote is a quote. UTF-8, with or without a BOM; lines end in `\n` or `\r\n`.

    The first line names the columns, in any case. A file in which it doesn't name any that's known
    has no such line, and its columns are `label`, `text`, or `label`, `text`, `pair`; a single one
    is `text`.

    Pairs labelled "-", on which annotators didn't agree, are left out, with a warning. Where labels
    aren't needed they stay, without a label, and a file in which all labels are -1 or empty has
    none.

    Args:
        path: The file.
        columns: Where to look, if the names aren't usual ones.
        kind: "class"; "labels", several a row; or "regression".
        is_pair: Whether there are two texts.
        needs_labels: Whether a file without labels is an error.
        separator: Between the labels of a row.
        skip_short: Whether rows with too few columns are left out, with a warning.

    Raises:
        InputError: a file that isn't there, isn't UTF-8 or holds no row; a column that's missing
            or there twice; bad quotes; a row with too few or too many columns, or with a label
            that's empty or no number. The message names the line.
    """
    header, records = read_records(path)
    places, records = _places(path, header, records, columns, is_pair, needs_labels)
    rows: list[LabelledText] = []
    short: list[int] = []
    unsure: list[int] = []
    for line, values in records:
        if skip_short and len(values) < len(header):
            short.append(line)
            continue
        cells = _cells(path, line, values, places, len(header))
        label = None
        if "label" in cells:
            label = read_label(path, line, cells["label"], kind, separator, needs_labels)
            if is_pair and kind == "class" and label == NO_LABEL:
                unsure.append(line)
                if needs_labels:
                    continue
                label = None
        pair = _text(path, line, cells["pair"]) if "pair" in cells else None
        text, name = _text(path, line, cells["text"]), str(cells.get("name", len(rows)))
        rows.append(LabelledText(label, text, line, pair, name))
    if short:
        about = f"{len(short)} rows with too few columns, the first in line {short[0]}"
        warnings.warn(f"{path}: left out {about}.", stacklevel=2)
    if unsure and needs_labels:
        about = f"{len(unsure)} rows labelled {NO_LABEL!r}, the first in line {unsure[0]}"
        warnings.warn(f"{path}: left out {about}.", stacklevel=2)
    if not rows:
        raise InputError(f"{path} holds no rows.")
    if not needs_labels and {row.label for row in rows} <= {"-1", -1.0, ("-1",), (), None}:
        rows = [row._replace(label=None) for row in rows]
    return rows


def read_label(
    path: Any, line: int, cell: Any, kind: str, separator: str = ",", needed: bool = True
) -> Any:
    """A cell's label, class names as text, or a number.

    Raises:
        InputError: it's empty though needed, or no finite number where that's asked for.
    """
    several = kind == "labels" and isinstance(cell, list)
    for part in cell if several else [cell]:
        is_plain = isinstance(part, (str, int, float)) and not isinstance(part, bool)
        if (not is_plain or part != part) and (part is not None or several):
            raise InputError(
                f"{path}, line {line}: the label must be a text or a number. "
                f"Received: {cell!r:.80}."
            )
    if kind == "labels":
        parts = cell if several else "" if cell is None else str(cell)
        parts = parts.split(separator) if isinstance(parts, str) else parts
        return tuple(dict.fromkeys(filter(None, (str(part).strip() for part in parts))))
    text = "" if cell is None else str(cell).strip()
    if not text:
        if needed:
            raise InputError(f"{path}, line {line}: the label is empty.")
        return None
    if kind == "class":
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f"{path}, line {line}: the label must be a number. Received: {cell!r:.80}."
        )
    if abs(value) > LARGEST:
        raise InputError(
            f"{path}, line {line}: the label must be from -{LARGEST:g} to {LARGEST:g}, or float32 "
            f"can't hold it. Received: {cell!r:.80}."
        )
    return value


def class_names(path: Any, rows: Sequence[LabelledText], given: Sequence[str] = ()) -> list[str]:
    """The classes in the order of the logits: as given, else sorted, numbers by their value.

    Raises:
        InputError: there are fewer than two, or a row's isn't among those given.
    """
    if given:
        if not all(name.strip() for name in given):
            raise InputError("--labels must name its classes. Received: an empty name.")
        if len(set(given)) < len(given):
            raise InputError(f"--labels must differ. Received: {', '.join(given)}.")
        check_labels(path, rows, given)
        names = list(given)
    else:
        found = {name for row in rows for name in names_of(row.label)}
        are_numbers = all(re.fullmatch(r"-?\d{1,18}", name) for name in found)
        names = sorted(found, key=int) if are_numbers else sorted(found)
    if len(names) < 2:
        only = f"one class only, {names[0]!r}" if names else "no labels"
        raise InputError(f"{path} holds {only}: give at least two classes.")
    return names


def check_labels(path: Any, rows: Iterable[LabelledText], names: Sequence[str]) -> None:
    """Raises InputError for the first row with a label that isn't among the class names."""
    where = f"{path}, line" if path else "line"
    classes = set(names)
    for row in rows:
        for name in names_of(row.label):
            if name not in classes:
                known = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
                raise InputError(
                    f"{where} {row.line}: the label {name!r:.80} isn't among the classes "
                    f"({known}), which are those given, or else those of the training file."
                )


def names_of(label: Any) -> tuple[str, ...]:
    """The names in a label: of none, one or several classes."""
    return () if label is None else label if isinstance(label, tuple) else (label,)


def _places(
    path: Any, header: list[str], records: Any, columns: Columns, is_pair: bool, labelled: bool
) -> tuple[dict[str, Any], Iterator[tuple[int, Any]]]:
    """Each part's column, a number from 0 or a JSON key, and the records without the header."""
    known = [name.lower() for name in header]
    first_line, first = next(records)
    is_json = isinstance(first, dict)
    given = {part: name for part, name in columns._asdict().items() if name}
    by_number = (
        bool(given)
        and not is_json
        and all(name.isdecimal() for name in given.values())
        and not {name.lower() for name in given.values()} <= set(known)
    )
    usual = {"text": TEXTS, "label": LABELS, "name": NAMES, "pair": ()}
    couple = next((pair for pair in PAIRS if set(pair) <= set(known)), None) if is_pair else None
    if couple:
        usual |= {"text": couple[:1], "pair": couple[1:]}
    if by_number:
        if not labelled and "label" in given and int(given["label"]) > len(header):
            del given["label"]
        for part, name in given.items():
            if not 1 <= int(name) <= len(header):
                raise InputError(
                    f"{path}, line {first_line}: --{part}-column must be a name or a number from 1 "
                    f"to {len(header)}. Received: {name}."
                )
        found: dict[str, Any] = {part: int(name) - 1 for part, name in given.items()}
        records = itertools.chain([(first_line, first)], records)
    elif given or is_json or set(known) & _all_names():
        found = {}
        _check_header(path, first_line, known)
        for part, names in usual.items():
            name = given.get(part, "")
            if part == "label" and not labelled and name and name.lower() not in known:
                continue  # and no other column that might look like one
            column = _column(path, first_line, known, part, name, names)
            found[part] = header[column] if is_json and column is not None else column
        records = itertools.chain([(first_line, first)], records) if is_json else records
    else:
        order = ["label", "text", *(["pair"] if is_pair else [])]
        if not labelled and len(header) < len(order):
            order = order[1:]
        found = {part: i for i, part in enumerate(order)}
        records = itertools.chain([(first_line, first)], records)
    needed = ["text", *(["pair"] if is_pair else []), *(["label"] if labelled else [])]
    for part in needed:
        if found.get(part) is None:
            raise InputError(
                f"{path}, line {first_line}: found no column for the {part} among "
                f"{', '.join(header):.80}: name it by --{part}-column."
            )
    places = [found[part] for part in ("text", "pair", "label") if found.get(part) is not None]
    if len(set(places)) < len(places):
        raise InputError(
            f"{path}, line {first_line}: one column can't be two of text, pair and label: name "
            "others by --text-column and the like."
        )
    return {part: found.get(part) for part in ("text", "pair", "label", "name")}, records


def _check_header(path: Any, line: int, known: list[str]) -> None:
    for name in known:
        if known.count(name) > 1:
            raise InputError(
                f"{path}, line {line}: the column {name!r} is there twice: rename one of them."
            )


def _column(
    path: Any, line: int, known: list[str], part: str, given: str, usual: Sequence[str]
) -> int | None:
    """The number of a part's column, or None."""
    if given:
        if given.lower() not in known:
            raise InputError(
                f"{path}, line {line}: there's no column {given!r} for the {part}, but "
                f"{', '.join(known):.80}."
            )
        return known.index(given.lower())
    found = [name for name in usual if name in known]
    if len(found) > 1 and part != "name":
        raise InputError(
            f"{path}, line {line}: the {part} may be {' or '.join(found)}: name it by "
            f"--{part}-column."
        )
    return known.index(found[0]) if found else None


def _cells(path: Any, line: int, values: Any, places: dict[str, Any], width: int) -> dict[str, Any]:
    used = {part: place for part, place in places.items() if place is not None}
    if isinstance(values, dict):
        for part, place in used.items():
            if place not in values:
                raise InputError(f"{path}, line {line}: the object has no {place!r}, its {part}.")
    elif len(values) <= max(used.values()):
        raise InputError(
            f"{path}, line {line}: expected at least {max(used.values()) + 1} columns. "
            f"Received: {values!r:.80}."
        )
    elif any(map(str.strip, values[width:])):
        raise InputError(
            f"{path}, line {line}: {len(values)} columns, and {width} in the first line: is there "
            "a tab in a text?"
        )
    return {part: values[place] for part, place in used.items()}


def _text(path: Any, line: int, value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):  # keywords
        return " ".join(value)
    if not isinstance(value, (str, int, float)) or isinstance(value, bool) or value != value:
        raise InputError(f"{path}, line {line}: expected a text. Received: {value!r:.80}.")
    return str(value)


def _all_names() -> set[str]:
    return {*TEXTS, *LABELS, *(name for pair in PAIRS for name in pair)}
