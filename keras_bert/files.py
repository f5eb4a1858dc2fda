"""Writing files so that nobody ever finds half of one."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file in one step: readers see the old file or the new one, never a part."""
    path = pathlib.Path(path)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8", newline="\n")
    os.replace(unfinished, path)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as indented JSON, in one step."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def replacing(folder: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Gives an empty folder to fill, which takes the place of `folder` once it's whole.

    Until then the old one stays, and where filling fails, it stays for good. A kill between
    the two renames leaves it beside the new one, as `.NAME.old`.
    """
    folder = pathlib.Path(folder)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    old = folder.with_name(f".{folder.name}.old")
    for rest in (unfinished, old):
        shutil.rmtree(rest, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    if folder.exists():
        os.replace(folder, old)
    os.replace(unfinished, folder)
    shutil.rmtree(old, ignore_errors=True)
