"""Writing files so that nobody ever finds half of one."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Collection, Iterator
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

    Until then the old one stays, and where filling fails, it stays for good. What a kill left
    beside it is cleared away by the next call, or put back if it's all there is. Where `folder`
    is a link, the folder that it leads to is replaced.
    """
    folder = pathlib.Path(os.path.realpath(folder))
    _clear_up(folder)
    mine = f".{folder.name}.{os.getpid()}"  # two processes may write the same folder
    unfinished, old = (folder.with_name(f"{mine}.{end}") for end in ("unfinished", "old"))
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        if folder.exists():
            os.replace(folder, old)
        os.replace(unfinished, folder)
    except BaseException:
        if old.exists() and not folder.exists():
            os.replace(old, folder)
        raise
    finally:
        for rest in (unfinished, old):
            shutil.rmtree(rest, ignore_errors=True)


@contextlib.contextmanager
def unfinished_in(folder: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Gives an empty folder to fill, hidden in `folder`; `as_next_number` gives it its name.

    Without one it's removed at the end, and what a killed process left, by the next call.
    """
    folder = pathlib.Path(folder)
    for rest in folder.glob(".next.*.unfinished"):
        process = rest.name.split(".")[2]
        if process.isdigit() and int(process) != os.getpid() and not _runs(int(process)):
            shutil.rmtree(rest, ignore_errors=True)
    unfinished = folder / f".next.{os.getpid()}.{secrets.token_hex(4)}.unfinished"
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def as_next_number(unfinished: pathlib.Path) -> pathlib.Path:
    """Renames a folder to the number after the highest beside it, from 1 on.

    A number that's there is never touched, whoever else writes at the same time.
    """
    while True:
        target = unfinished.with_name(str(max([0, *numbers(unfinished.parent)]) + 1))
        try:
            return unfinished.rename(target)
        except OSError:
            if not target.exists():
                raise


def numbers(folder: str | os.PathLike[str]) -> list[int]:
    """The names of a folder's entries that are numbers."""
    return [int(path.name) for path in pathlib.Path(folder).glob("*") if path.name.isdecimal()]


def holds(folder: str | os.PathLike[str], files: Collection[str], needed: Collection[str]) -> bool:
    """Whether a folder is empty, or holds these files and no others, one of `needed` among them.

    That is what may be replaced: a folder of the user's own may share a name with ours.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        return False
    found = [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    names = {path.relative_to(folder).as_posix() for path in found}
    return not any(folder.iterdir()) or (names <= set(files) and bool(names & set(needed)))


def _clear_up(folder: pathlib.Path) -> None:
    """Removes what processes that are gone left of `folder`; an old one goes back if need be."""
    for rest in sorted(folder.parent.glob(f".{glob.escape(folder.name)}.*")):
        *_, process, end = rest.name.split(".")
        if end not in ("old", "unfinished") or not process.isdigit() or _runs(int(process)):
            continue
        if end == "old" and not folder.exists():
            os.replace(rest, folder)
        elif rest.is_dir() and not rest.is_symlink():
            shutil.rmtree(rest, ignore_errors=True)


def _runs(process: int) -> bool:
    if process == os.getpid():
        return False  # an earlier process that had this number
    if os.name == "nt":
        return True  # where signal 0 isn't a question, but Ctrl-C
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True
