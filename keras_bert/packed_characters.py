"""The Unicode table packed for a graph: what a character becomes, as arrays to gather from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from keras_bert.unicode_table import (
    CASED,
    CJK,
    DROP,
    FINAL_SIGMA,
    IGNORABLE,
    NUM_CODE_POINTS,
    PUNCTUATION,
    SPACE,
    STARTER_MARK,
    WordSplitter,
    load_table,
)

# Beside the table's DROP, SPACE, CASED, IGNORABLE and STARTER_MARK, a packed character's bits.
WORD = 8  # a word of its own
MANY = 128  # above the bits there isn't a symbol but a row of `expansions`


class PackedCharacters(NamedTuple):
    """What a `WordSplitter` does, as arrays that a graph can gather from.

    A character is `pages[256 * page_of[code >> 8] + (code & 255)]`: its property bits, and
    above them, from bit 8, the symbol of its one letter.
    """

    page_of: np.ndarray  # int32 (0x1100,)
    pages: np.ndarray  # int32 (pages * 256,)
    expansions: np.ndarray  # int32 (E, K), the letters' symbols, then -1
    mark_class: np.ndarray  # int32 (symbols,), the combining class of marks that stripping leaves
    final_sigma: int  # the packed character, 0 where nothing is lower-cased


def pack_characters(
    splitter: WordSplitter, symbol_of: np.ndarray, num_symbols: int
) -> PackedCharacters:
    """Packs the table for one splitter and one alphabet: code point -> symbol, int32 (0x110000,).

    Letters outside the alphabet may share a symbol, or have none: 0.
    """
    table = load_table()
    mode = splitter.lowercase, splitter.strip_accents
    marks = table.combining_class.items()
    classes = {int(symbol_of[code]): class_ for code, class_ in marks if symbol_of[code]}
    mark_class = np.zeros(num_symbols, np.int32)
    if splitter.strip_accents:
        mark_class[list(classes)] = list(classes.values())
    # Marks of one class keep their order anyhow, so that most alphabets need no sorting.
    needs_order = len(set(classes.values())) > 1 and splitter.strip_accents

    letter = np.arange(NUM_CODE_POINTS)
    bits = table.properties & (DROP | SPACE | CASED | IGNORABLE)
    rest = symbol_of.copy()
    expansions: dict[tuple[int, ...], int] = {}
    for code in table.lower.keys() | table.stripped.keys():
        letters = table.letters(code, *mode)
        if len(letters) == 1:
            letter[code] = letters[0]
        elif not letters:
            keep = needs_order and table.properties[code] & STARTER_MARK
            bits[code] |= STARTER_MARK if keep else DROP
        else:
            row = tuple(int(symbol_of[c]) for c in letters)
            bits[code] |= MANY
            rest[code] = expansions.setdefault(row, len(expansions))
    one = bits & MANY == 0
    rest[one] = symbol_of[letter[one]]
    alone = (table.properties[letter] & PUNCTUATION > 0) & one
    if splitter.split_cjk:
        alone |= table.properties & CJK > 0
    bits[alone] |= WORD

    pages, page_of = np.unique((rest << 8 | bits).reshape(-1, 256), axis=0, return_inverse=True)
    width = max(map(len, expansions), default=1)
    rows = [row + (-1,) * (width - len(row)) for row in expansions] or [(-1,) * width]
    return PackedCharacters(
        page_of.reshape(-1).astype(np.int32),
        pages.reshape(-1).astype(np.int32),
        np.array(rows, np.int32),
        mark_class if needs_order else np.zeros(0, np.int32),
        int(symbol_of[ord(FINAL_SIGMA)]) << 8 | CASED if splitter.lowercase else 0,
    )
