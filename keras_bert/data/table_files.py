"""The formats of tables, TSV, CSV and JSON lines: from a file to records, each with its line."""

from __future__ import annotations

import csv
import itertools
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from keras_bert.data.text_files import read_text
from keras_bert.errors import InputError


def read_records(path: str | os.PathLike[str]) -> tuple[list[str], Iterator[tuple[int, Any]]]:
    """The first line's column names, and every record after it with its line, from 1.

    A record is a list of cells, or a dict of JSON lines, whose first object is also a record.

    Raises:
        InputError: as `tables.read_labelled_texts`; here, what can be found without knowing the
            columns.
    """
    text = read_text(path)
    if "\r" in text.rstrip("\r") and "\n" not in text:
        raise InputError(f"{path}: its lines end in CR alone. Convert them to LF.")
    lines = text.split("\n")
    suffix = pathlib.Path(path).suffix.lower()
    if suffix in (".jsonl", ".json"):
        records: Iterator[tuple[int, Any]] = _json_lines(path, lines)
    elif suffix == ".csv":
        records = _csv(path, lines)
    else:
        records = _tsv(lines)
    first = next(records, None)
    if first is None:
        raise InputError(f"{path} holds no rows.")
    header = [str(name).strip() for name in first[1]]
    return header, itertools.chain([first], records)


def _tsv(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """GLUE's files aren't quoted: a quote in them is part of the text."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line.removesuffix("\r").split("\t")


def _csv(path: Any, lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    columns = 0
    while True:
        number = reader.line_num + 1
        try:
            values = next(reader, None)
        except csv.Error as error:
            raise InputError(
                f"{path}, line {number}: {_csv_fault(str(error))} Received: {error}."
            ) from error
        if values is None:
            return
        if not any(value.strip() for value in values):
            continue
        columns = columns or len(values)
        if len(values) != columns:
            raise InputError(
                f"{path}, line {number}: {len(values)} columns, and {columns} in the first line. "
                "A cell with a comma must be quoted."
            )
        yield number, values


def _csv_fault(message: str) -> str:
    """What's wrong with a record, and what to do."""
    if "new-line" in message:
        return "a carriage return without a line feed: end lines in LF or CR LF, or quote the cell."
    if "limit" in message:
        limit = csv.field_size_limit()
        return f"a cell of more than {limit} characters: close its quote, or shorten the text."
    return (
        "bad quotes in the record that begins here: a quote in a quoted cell must be doubled, and "
        "every quote closed."
    )


def _json_lines(path: Any, lines: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the key {twice!r} is there twice")
        return dict(items)

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=pairs)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON ({error!s:.200}).") from error
        if not isinstance(value, dict):
            raise InputError(
                f"{path}, line {number}: expected a JSON object a line. Received: {line[:80]!r}."
            )
        # Halves alone: loads joins two that belong together.
        if "\\ud" in line.lower() and re.search(
            "[\ud800-\udfff]", json.dumps(value, ensure_ascii=False)
        ):
            raise InputError(
                f"{path}, line {number}: it holds half of a surrogate pair, which is no text."
            )
        yield number, value
