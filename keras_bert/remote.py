"""Paths such as `gs://bucket/run`: copied in before they're read, copied out as they grow.

A recipe works on local files, which have renames, links and a size; a bucket has none of these.
What is read comes in by `local`; a run folder has a `working_copy`, which `copy_out` sends back
whenever there's something worth keeping. Any store that fsspec knows will do.
"""

from __future__ import annotations

import atexit
import functools
import os
import pathlib
import posixpath
import shutil
import tempfile
from typing import Any

from keras_bert.errors import InputError

HUBS = ("hf://", "kaggle://")  # names of checkpoints, which `keras_bert.load` understands itself
COMPLETE = "complete"  # a checkpoint counts once this file of it is there: last in, first out


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether the path is on a store, such as `gs://...`, and not on this machine or a hub."""
    path = os.fspath(path)
    return "://" in path and not path.startswith(HUBS)


@functools.cache
def local(path: str) -> str:
    """The path of a copy of a remote file or folder, made once a process; a local path as it is.

    Raises:
        InputError: there's nothing, or the store can't be reached.
    """
    if not is_remote(path):
        return path
    target = pathlib.Path(tempfile.mkdtemp(dir=_scratch())) / posixpath.basename(path.rstrip("/"))
    if not _copy_in(path, target):
        raise InputError(f"{path} isn't there: check the path.")
    return str(target)


@functools.cache
def working_copy(url: str) -> pathlib.Path:
    """The local folder of this process that stands for a remote one, with all that's in it.

    Raises:
        InputError: the store can't be reached, or `url` is a file.
    """
    folder = pathlib.Path(tempfile.mkdtemp(dir=_scratch())) / posixpath.basename(url.rstrip("/"))
    _copy_in(url, folder)
    if folder.is_file():
        raise InputError(f"{url} is a file, and a folder is needed.")
    folder.mkdir(exist_ok=True)
    _sent[url] = (folder, _files(folder))
    return folder


def copy_out() -> None:
    """Makes every remote folder like its working copy.

    An object store takes a file whole or not at all, but knows no rename of a folder: the file
    `complete` of a checkpoint goes last, and is the first to be removed. What's new goes before
    anything is removed, so that there's always a checkpoint.
    """
    for url, (folder, sent) in _sent.items():
        filesystem, root = open_store(url)
        found = _files(folder)
        for name in sorted(found, key=_complete_last):
            if sent.get(name) != found[name]:
                filesystem.makedirs(posixpath.dirname(f"{root}/{name}"), exist_ok=True)
                filesystem.put_file(str(folder / name), f"{root}/{name}")
        for name in sorted(sent.keys() - found.keys(), key=_complete_last, reverse=True):
            filesystem.rm_file(f"{root}/{name}")
        _sent[url] = (folder, found)


# Of each working copy: its folder, and the files that the store has, as they were when sent.
_sent: dict[str, tuple[pathlib.Path, dict[str, tuple[int, int]]]] = {}


def _files(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Name -> (time of the last change, bytes) of the files that are whole."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and ".unfinished" not in name:
            files[name] = (path.stat().st_mtime_ns, path.stat().st_size)
    return files


def _complete_last(name: str) -> tuple[bool, str]:
    return posixpath.basename(name) == COMPLETE, name


def _copy_in(url: str, target: pathlib.Path) -> bool:
    """Copies a file or a folder; False if there's nothing."""
    filesystem, root = open_store(url)
    try:
        if filesystem.isfile(root):
            target.parent.mkdir(parents=True, exist_ok=True)
            filesystem.get_file(root, str(target))
            return True
        paths = filesystem.find(root)
        for path in paths:
            name = posixpath.relpath(path, root)
            if name.startswith(".."):
                raise InputError(f"{url} holds {path}, which is outside of it.")
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            filesystem.get_file(path, str(target / name))
    except OSError as error:
        raise InputError(f"{url} can't be read: {error}.") from error
    return bool(paths)


def open_store(url: str) -> tuple[Any, str]:
    """The file system of fsspec that a URL is on, and its path there.

    Raises:
        InputError: fsspec, or its package for this store, isn't installed, or there's no such
            store.
    """
    try:
        import fsspec
    except ImportError as error:
        raise InputError(f"{url} needs fsspec: run `pip install fsspec`.") from error
    try:
        filesystem, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:  # no package for it, or no such protocol
        raise InputError(f"{url} can't be opened: {error}.") from error
    return filesystem, root.rstrip("/")


@functools.cache
def _scratch() -> str:
    """A folder for copies, removed at the end of the process."""
    folder = tempfile.mkdtemp(prefix="keras_bert_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
