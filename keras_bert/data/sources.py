"""Text wherever it lies -> documents: files, folders, patterns and URLs, in the usual formats.

| format | told by |
|---|---|
| plain text | any name that isn't below |
| WikiExtractor's | a first line `<doc ...>` |
| JSON lines with a `text` key, a document each | .jsonl, or a first line that is one |
| Parquet with a `text` column, a document a row (needs pyarrow) | .parquet |

Each but Parquet may be compressed (.gz). Paths with `://`, such as `gs://bucket/folder` or
`https://...`, are opened by fsspec.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import gzip
import html
import itertools
import json
import os
import pathlib
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from keras_bert import remote
from keras_bert.data.documents import DocumentBreak, documents_in
from keras_bert.errors import InputError

_COUNTED_BYTES = 1_000_000


@dataclasses.dataclass(frozen=True)
class Source:
    """A file of text, and how it's cut into documents (`documents.documents_in`)."""

    path: str
    num_bytes: int
    document_break: DocumentBreak = "blank"
    unwrap: bool = False
    work: int = 0  # the index of the input that it belongs to


def find_files(path: str) -> list[tuple[str, int]]:
    """The files that a path, a folder, a pattern or a URL stands for, in order, with their sizes.

    Hidden files, and those whose names begin with an underscore, are no part of a folder.

    Raises:
        InputError: there is no such file, or fsspec is needed and missing.
    """
    if "://" in path:
        return _find_remote(path)
    if os.path.isfile(path):
        return [(path, os.path.getsize(path))]
    if os.path.isdir(path):
        inside = sorted(pathlib.Path(path).rglob("*"))
        found = [str(file) for file in inside if not _is_hidden(file.relative_to(path).parts)]
    else:
        found = sorted(glob.glob(path, recursive=True))
    files = [(file, os.path.getsize(file)) for file in found if os.path.isfile(file)]
    if not files:
        is_pattern = glob.has_magic(path) or os.path.isdir(path)
        raise InputError(
            f"{path} matches no file: check it."
            if is_pattern
            else f"{path} isn't a file: check the path."
        )
    return files


def read_documents(
    source: Source, count_bytes: Callable[[int], object] = int
) -> Iterator[list[str]]:
    """Yields a file's documents one by one, each a list of stripped, non-empty paragraphs.

    Args:
        source: The file.
        count_bytes: Called with the bytes read (as stored) since the last call.

    Raises:
        InputError: naming file and line, where the file isn't what its name says: not UTF-8, a
            binary file, no JSON object with a text, damaged compression.
    """
    if source.path.endswith(".parquet"):
        return _parquet_documents(source, count_bytes)
    lines = _lines(source.path, count_bytes)
    if source.path.removesuffix(".gz").endswith(".jsonl"):
        return _jsonl_documents(lines, source)
    first = next(lines, (1, ""))
    lines = itertools.chain([first], lines)
    if first[1].startswith("<doc "):
        return _wiki_documents(lines, source)
    if _is_json_row(first[1]):  # as `wikiextractor --json` writes into wiki_00
        return _jsonl_documents(lines, source)
    return documents_in((line for _, line in lines), source.document_break, source.unwrap)


def _find_remote(path: str) -> list[tuple[str, int]]:
    system, name = remote.open_store(path)
    try:
        if system.isdir(name):
            details = system.find(name, detail=True)
            found = {
                file: info
                for file, info in details.items()
                if not _is_hidden(tuple(file.removeprefix(name).strip("/").split("/")))
            }
        elif glob.has_magic(name):
            found = system.glob(name, detail=True)
        else:
            found = {name: system.info(name)}
    except FileNotFoundError:
        found = {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be opened ({error}): check the address.") from error
    files = [
        (system.unstrip_protocol(file), int(info.get("size") or 0))
        for file, info in sorted(found.items())
        if info["type"] == "file"
    ]
    if not files:
        raise InputError(f"{path} matches no file: check the address.")
    return files


def _is_hidden(parts: tuple[str, ...]) -> bool:
    return any(part.startswith((".", "_")) for part in parts)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if "://" in path:
        system, name = remote.open_store(path)
        with system.open(name, "rb") as file:
            yield file
    else:
        with open(path, "rb") as file:
            yield file


def _lines(path: str, count_bytes: Callable[[int], object]) -> Iterator[tuple[int, str]]:
    r"""Yields (number, line) of a UTF-8 file; lines end with "\n" (U+2028 is no line break)."""
    number = counted = waiting = 0
    with _opened(path) as stored:
        is_gzip = path.endswith(".gz")
        unpacked: Any = gzip.GzipFile(fileobj=stored) if is_gzip else stored
        try:
            for number, line in enumerate(unpacked, start=1):
                waiting += len(line)
                if waiting > _COUNTED_BYTES:  # a progress bar takes longer than a line
                    count_bytes(stored.tell() - counted)
                    counted, waiting = stored.tell(), 0
                yield number, _decoded(line, path, number)
            count_bytes(stored.tell() - counted)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{path}, after line {number}: damaged compression ({error}): copy the file again."
            ) from error


def _decoded(line: bytes, path: str, number: int) -> str:
    if b"\0" in line:
        raise InputError(
            f"{path}, line {number}: holds a NUL byte, so it's a binary file or of another "
            "encoding; save it as UTF-8 text, or leave it out."
        )
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}, line {number}: byte {line[error.start]:#04x} isn't UTF-8; "
            "save the file as UTF-8."
        ) from error


def _is_json_row(line: str) -> bool:
    try:
        row = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and isinstance(row.get("text"), str)


def _jsonl_documents(lines: Iterator[tuple[int, str]], source: Source) -> Iterator[list[str]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{source.path}, line {number}: isn't JSON ({error}); each line must be an object."
            ) from error
        text = row.get("text") if isinstance(row, dict) else None
        if not isinstance(text, str):
            raise InputError(
                f"{source.path}, line {number}: has no `text` that is a string; each line must be "
                'an object such as {"text": "..."}.'
            )
        yield from documents_in(text.split("\n"), "file", source.unwrap)


def _parquet_documents(source: Source, count_bytes: Callable[[int], object]) -> Iterator[list[str]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise InputError(f"{source.path} needs pyarrow: run `pip install pyarrow`.") from error
    with _opened(source.path) as stored:
        try:
            file = parquet.ParquetFile(stored)
            if "text" not in file.schema_arrow.names:
                raise InputError(f"{source.path}: has no column `text`; rename the one with texts.")
            row, total, counted = 0, max(1, file.metadata.num_rows), 0
            for batch in file.iter_batches(batch_size=256, columns=["text"]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    if not isinstance(text, str):
                        raise InputError(f"{source.path}, row {row}: `text` isn't a string.")
                    yield from documents_in(text.split("\n"), "file", source.unwrap)
                position = source.num_bytes * row // total  # as if all rows were as long
                count_bytes(position - counted)
                counted = position
        except (OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{source.path}: isn't a Parquet file ({error}).") from error


def _wiki_documents(lines: Iterator[tuple[int, str]], source: Source) -> Iterator[list[str]]:
    """`<doc id="12" ...>`, the title, the paragraphs, `</doc>`."""
    document: list[str] | None = None
    for number, line in lines:
        if line.startswith("<doc "):
            if document is not None:
                raise InputError(
                    f"{source.path}, line {number}: a document begins before the last has ended "
                    "with </doc>; extract the file again."
                )
            document = []
        elif line.startswith("</doc>"):
            yield from documents_in(document or (), "file", source.unwrap)
            document = None
        elif document is not None:
            document.append(html.unescape(line))
        elif line.strip():
            raise InputError(
                f"{source.path}, line {number}: is outside <doc> and </doc>: {line.strip()[:40]!r}."
            )
    if document is not None:
        raise InputError(f"{source.path}: ends without </doc>; extract the file again.")
