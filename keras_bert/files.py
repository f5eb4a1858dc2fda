"""Writing files so that nobody ever finds half of one."""

from __future__ import annotations

import json
import os
import pathlib
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
