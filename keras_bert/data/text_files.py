"""Reading text files that people made."""

from __future__ import annotations

import os
import pathlib

from keras_bert import remote
from keras_bert.errors import InputError


def read_text(path: str | os.PathLike[str]) -> str:
    r"""A UTF-8 file's text, without a BOM, its line ends as they are; or one on a store.

    Split it at "\n" alone: U+2028 and its like are text.

    Raises:
        InputError: the file isn't UTF-8, at the line that's named.
    """
    try:
        return pathlib.Path(remote.local(os.fspath(path))).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        fault = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{path}, line {fault}: not UTF-8. Convert the file to UTF-8.") from error
