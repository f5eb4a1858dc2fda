"""The frozen Unicode table, and the split of a text into normalised words that reads it.

BERT's ids depend on character classes, lower-casing and NFD, and these change with every
Unicode version, hence with every Python. The table beside this module holds them as of
Unicode 14.0; `python -m keras_bert.unicode_table` makes it again, under Python 3.11.
"""

import functools
import io
import itertools
import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

UNICODE_VERSION = "14.0.0"
TABLE_PATH = Path(__file__).with_name("unicode_14.npz")
NUM_CODE_POINTS = 0x110000

# The bits of a code point's property byte.
DROP = 1  # U+0000, U+FFFD and what is Cc or Cf, except tab, newline, carriage return
SPACE = 2  # Zs, tab, newline, carriage return, and the two separators Python splits on
CJK = 4  # the blocks of ideographs around which the original code puts spaces
PUNCTUATION = 8  # ASCII that is no letter or digit, and P*
CASED = 16  # with IGNORABLE, the context that makes a capital sigma final
IGNORABLE = 32
STARTER_MARK = 64  # Mn of combining class 0: dropped with the accents, yet ends a run of marks

CAPITAL_SIGMA, FINAL_SIGMA = "\u03a3", "\u03c2"
CJK_BLOCKS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class UnicodeTable(NamedTuple):
    """What BERT asks of Unicode. A code point that a mapping lacks maps to itself."""

    properties: np.ndarray  # uint8 (0x110000,), the bits above
    lower: dict[int, tuple[int, ...]]  # lower case, without the rule of the final sigma
    stripped: dict[int, tuple[int, ...]]  # NFD without its Mn
    combining_class: dict[int, int]  # of the marks that stripping leaves, where it isn't 0

    def letters(self, code: int, lowercase: bool, strip_accents: bool) -> tuple[int, ...]:
        """The code points that `code` becomes, one by one: lower case first, then NFD."""
        codes = self.lower.get(code, (code,)) if lowercase else (code,)
        if strip_accents:
            codes = tuple(c for code in codes for c in self.stripped.get(code, (code,)))
        return codes


@functools.cache
def load_table() -> UnicodeTable:
    """Reads the frozen table (once)."""
    with np.load(TABLE_PATH, allow_pickle=False) as file:
        arrays = dict(file)

    def mapping(name: str) -> dict[int, tuple[int, ...]]:
        rows = arrays[f"{name}_letters"].tolist()
        codes = arrays[f"{name}_codes"].tolist()
        return {code: tuple(c for c in row if c) for code, row in zip(codes, rows, strict=True)}

    lengths = np.diff(arrays["run_starts"], append=NUM_CODE_POINTS)
    return UnicodeTable(
        properties=np.repeat(arrays["run_properties"], lengths),
        lower=mapping("lower"),
        stripped=mapping("stripped"),
        combining_class=dict(arrays["combining_class"].tolist()),
    )


class WordSplitter:
    """Splits a text into normalised words: the original code's `BasicTokenizer`.

    Controls are dropped; words end at spaces; CJK ideographs and punctuation are words of
    their own; letters are lower-cased and lose their accents (NFD without Mn).

    Args:
        lowercase: Lower-case, with the rule of the final sigma.
        strip_accents: Drop the accents; None means as `lowercase`.
        split_cjk: Make every CJK ideograph a word.
    """

    def __init__(
        self, lowercase: bool = True, strip_accents: bool | None = None, split_cjk: bool = True
    ):
        self.lowercase = lowercase
        self.strip_accents = lowercase if strip_accents is None else strip_accents
        self.split_cjk = split_cjk
        table = load_table()
        self._characters = _Characters(table, lowercase, self.strip_accents, split_cjk)
        marks = table.combining_class.keys() if self.strip_accents else set()
        self._marked = {*marks, *(c for c, x in table.stripped.items() if not marks.isdisjoint(x))}

    def __reduce__(self) -> tuple[Any, ...]:
        return WordSplitter, (self.lowercase, self.strip_accents, self.split_cjk)

    def words(self, text: str) -> list[str]:
        """The words of a text, normalised."""
        if self.lowercase and CAPITAL_SIGMA in text:
            text = "".join(
                FINAL_SIGMA if c == CAPITAL_SIGMA and _is_final(text, i) else c
                for i, c in enumerate(text)
            )
        if self._marked and not text.isascii() and not self._marked.isdisjoint(map(ord, text)):
            return _in_canonical_order(text, self._characters).split()
        return text.translate(self._characters).split()

    def sources(self, text: str, base: int = 0) -> list[int]:
        """For each letter of `words(text)`, in order, its character's index in `text` + `base`."""
        spelled = map(self._characters.__getitem__, map(ord, text))
        return [i for i, letters in enumerate(spelled, base) for letter in letters if letter != " "]

    def stands_alone(self, letter: str) -> bool:
        """Whether a normalised letter is always a word of its own."""
        return self._characters[ord(letter)].startswith(" ")


class _Characters(dict[int, str]):
    """code point -> its letters, with a space on both sides where they are a word of their own.

    It's what `str.translate` takes; filled as characters are met.
    """

    def __init__(self, table: UnicodeTable, lowercase: bool, strip_accents: bool, split_cjk: bool):
        super().__init__()
        self._table = table
        self._mode = (lowercase, strip_accents)
        self._alone = CJK if split_cjk else 0

    def __missing__(self, code: int) -> str:
        properties = self._table.properties
        letters = self._table.letters(code, *self._mode)
        if properties[code] & DROP:
            spelled = ""
        elif properties[code] & SPACE:
            spelled = " "
        else:
            spelled = "".join(map(chr, letters))
            is_punctuation = len(letters) == 1 and properties[letters[0]] & PUNCTUATION
            if is_punctuation or properties[code] & self._alone:
                spelled = f" {spelled} "
        self[code] = spelled
        return spelled


def _is_final(text: str, index: int) -> bool:
    """Whether the sigma here ends its word (Unicode, section 3.13, Final_Sigma)."""
    before = (text[i] for i in range(index - 1, -1, -1))
    after = (text[i] for i in range(index + 1, len(text)))
    return _meets_cased(before) and not _meets_cased(after)


def _meets_cased(chars: Iterable[str]) -> bool:
    properties = load_table().properties
    for char in chars:
        if not properties[ord(char)] & (DROP | IGNORABLE):
            return bool(properties[ord(char)] & CASED)
    return False


def _in_canonical_order(text: str, characters: _Characters) -> str:
    """Translates and sorts each run of marks by combining class, as NFD does."""
    table = load_table()
    letters: list[tuple[int, str]] = []  # (combining class, letter)
    for code in map(ord, text):
        if table.properties[code] & STARTER_MARK:
            letters.append((0, ""))
        letters += [(table.combining_class.get(ord(c), 0), c) for c in characters[code]]
    spelled = ""
    for is_mark, run in itertools.groupby(letters, key=lambda letter: letter[0] > 0):
        ordered = sorted(run, key=lambda letter: letter[0] if is_mark else 0)
        spelled += "".join(letter for _, letter in ordered)
    return spelled


def _properties(code: int) -> int:
    char = chr(code)
    category = unicodedata.category(char)
    # Only these two of the C* are dropped: private and unassigned code points are letters.
    if code in (0, 0xFFFD) or (category in ("Cc", "Cf") and char not in "\t\n\r"):
        bits = DROP
    elif category == "Zs" or char.isspace():
        bits = SPACE
    else:
        bits = 0
    if any(first <= code <= last for first, last in CJK_BLOCKS):
        bits |= CJK
    if category.startswith("P") or (33 <= code < 127 and not char.isalnum()):
        bits |= PUNCTUATION
    # str.lower alone knows these two properties, so it is asked how a sigma fares beside them.
    if (char + CAPITAL_SIGMA).lower()[-1] == FINAL_SIGMA:
        bits |= CASED
    elif ("a" + char + CAPITAL_SIGMA).lower()[-1] == FINAL_SIGMA:
        bits |= IGNORABLE
    if category == "Mn" and unicodedata.combining(char) == 0:
        bits |= STARTER_MARK
    return bits


def _stripped(code: int) -> tuple[int, ...]:
    decomposed = unicodedata.normalize("NFD", chr(code))
    return tuple(ord(c) for c in decomposed if unicodedata.category(c) != "Mn")


def _check(table: UnicodeTable) -> None:
    """What the splitters take for granted."""
    blank = DROP | SPACE
    for lowercase, strip_accents in itertools.product((False, True), repeat=2):
        for code in range(NUM_CODE_POINTS):
            if table.properties[code] & blank:
                continue
            letters = table.letters(code, lowercase, strip_accents)
            bits = [int(table.properties[letter]) for letter in letters]
            assert not any(b & blank for b in bits), hex(code)
            assert len(letters) == 1 or not any(b & (PUNCTUATION | CJK) for b in bits), hex(code)
            assert len(letters) == 1 or not table.properties[code] & CJK, hex(code)


def make_table() -> None:
    """Writes the table from this Python's `unicodedata`, which must be of Unicode 14.0."""
    if unicodedata.unidata_version != UNICODE_VERSION:
        raise SystemExit(
            f"The table is of Unicode {UNICODE_VERSION} and this Python has "
            f"{unicodedata.unidata_version}: run Python 3.11."
        )
    codes = range(NUM_CODE_POINTS)
    properties = np.array([_properties(code) for code in codes], np.uint8)
    starts = np.flatnonzero(np.diff(properties, prepend=255))
    lower = {code: tuple(map(ord, chr(code).lower())) for code in codes}
    stripped = {code: _stripped(code) for code in codes}
    classes = [
        (code, unicodedata.combining(chr(code)))
        for code in codes
        if unicodedata.combining(chr(code)) and unicodedata.category(chr(code)) != "Mn"
    ]
    arrays: dict[str, Any] = {
        "run_starts": starts.astype(np.int32),
        "run_properties": properties[starts],
        "combining_class": np.array(classes, np.int32),
    }
    for name, mapping in (("lower", lower), ("stripped", stripped)):
        rows = {code: letters for code, letters in mapping.items() if letters != (code,)}
        width = max(map(len, rows.values()))
        arrays[f"{name}_codes"] = np.array(list(rows), np.int32)
        arrays[f"{name}_letters"] = np.array(
            [row + (0,) * (width - len(row)) for row in rows.values()], np.int32
        )
    _check(UnicodeTable(properties, lower, stripped, dict(classes)))

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    temporary = TABLE_PATH.with_name(TABLE_PATH.name + ".tmp")
    temporary.write_bytes(buffer.getvalue())
    os.replace(temporary, TABLE_PATH)


if __name__ == "__main__":
    make_table()
