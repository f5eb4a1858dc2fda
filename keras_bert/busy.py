"""A sign of life on standard error while something takes its time."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def busy(doing: str) -> Iterator[None]:
    """Shows what's being done, with a spinner in a terminal that has rich, else as a line.

    Standard output is left alone: it may be read by a program.
    """
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        print(f"{doing} ...", file=sys.stderr, flush=True)
        yield
        return
    from rich import console

    with console.Console(stderr=True).status(f"{doing} ..."):
        yield
