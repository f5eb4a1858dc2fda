"""WordPiece as a TensorFlow graph: core ops only, all words of a batch at once.

This module imports TensorFlow, and `tokenizers` imports this module where a graph is made.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.packed_characters import MANY, WORD, PackedCharacters, pack_characters
from keras_bert.unicode_table import (
    CAPITAL_SIGMA,
    CASED,
    DROP,
    IGNORABLE,
    NUM_CODE_POINTS,
    SPACE,
    STARTER_MARK,
    WordSplitter,
)


class Tables(NamedTuple):
    """A tokenizer as arrays.

    The trie's edges are the sorted `keys`, state * num_symbols + symbol. State 0 begins a
    word's first piece, state 1 the later ones, and edge i leads to state i + 2.
    """

    characters: PackedCharacters
    keys: np.ndarray  # int64 (edges + 1,), the last one a sentinel
    accepts: np.ndarray  # int32 (edges + 1,), the id of the piece that ends here, or -1
    num_symbols: int
    special_tokens: dict[str, int]  # those to be read in a text, with a symbol for each
    unk_id: int
    max_chars_per_word: int


# Called while a user's function is traced: AutoGraph would rewrite these loops, and slow them.
@tf.autograph.experimental.do_not_convert
def make_tables(
    splitter: WordSplitter,
    first_pieces: dict[str, int],
    later_pieces: dict[str, int],
    special_tokens: tuple[str, ...],
    unk_id: int,
    max_chars_per_word: int,
) -> Tables:
    """Makes the arrays from the pieces that begin a word and those that go on with one.

    Of the former, `special_tokens` are to be read as such where they stand in a text.
    """
    pieces = [*first_pieces, *later_pieces]
    ids = np.array([*first_pieces.values(), *later_pieces.values()], np.int32)
    symbols = {letter: i for i, letter in enumerate(sorted(set().union(*pieces)), 1)}
    special = {name: i for i, name in enumerate(special_tokens, len(symbols) + 1)}
    num_symbols = 1 + len(symbols) + len(special)
    symbol_of = np.zeros(NUM_CODE_POINTS, np.int32)
    symbol_of[[ord(letter) for letter in symbols]] = list(symbols.values())

    # Level by level: as states grow with the level, the keys come out sorted.
    spelled = np.zeros((len(pieces), max(map(len, pieces)) + 1), np.int64)
    for row, piece in enumerate(pieces):
        spelling = [special[piece]] if piece in special else [symbols[x] for x in piece]
        spelled[row, : len(spelling)] = spelling
    states = np.repeat(np.arange(2), [len(first_pieces), len(later_pieces)])
    keys, accepts, num_edges = [], [], 0
    for symbol, following in zip(spelled.T[:-1], spelled.T[1:], strict=True):
        alive = np.flatnonzero(symbol)
        level, edges = np.unique(states[alive] * num_symbols + symbol[alive], return_inverse=True)
        states[alive] = num_edges + edges + 2
        ends = following[alive] == 0
        accepted = np.full(len(level), -1, np.int32)
        accepted[edges[ends]] = ids[alive[ends]]
        keys.append(level)
        accepts.append(accepted)
        num_edges += len(level)
    return Tables(
        characters=pack_characters(splitter, symbol_of, num_symbols),
        keys=np.concatenate([*keys, [np.iinfo(np.int64).max]]),
        accepts=np.concatenate([*accepts, np.array([-1], np.int32)]),
        num_symbols=num_symbols,
        special_tokens=special,
        unk_id=unk_id,
        max_chars_per_word=max_chars_per_word,
    )


class Places(NamedTuple):
    """The pieces of each string, and where they stand in it."""

    ids: tf.RaggedTensor  # int32 (B, None)
    starts: tf.RaggedTensor  # int32 (B, None), code points of the string, without invalid bytes
    ends: tf.RaggedTensor  # int32 (B, None), likewise; one past the piece's last


def token_ids(strings: tf.Tensor, tables: Tables) -> tf.RaggedTensor:
    """The ids of each string: string (B,) -> int32 RaggedTensor (B, None)."""
    # Strings live on the host, and many small steps aren't an accelerator's work.
    with tf.device("/device:CPU:0"):
        ids, kept, rows = _pieces(strings, tables)
        return _by_row(ids, tf.gather(rows, kept), strings)


def places(strings: tf.Tensor, tables: Tables) -> Places:
    """`token_ids` of each string (B,), and where each piece starts and ends in it."""
    with tf.device("/device:CPU:0"):
        ids, kept, rows, sources = _pieces(strings, tables, with_sources=True)
        # Every letter is of some piece, so that each ends at the letter before the next one.
        next_ = tf.concat([kept[1:], [tf.size(sources, tf.int64)]], 0)[: tf.size(kept)]
        by_row = _by_row(ids, tf.gather(rows, kept), strings)
        return Places(
            by_row,
            by_row.with_flat_values(tf.gather(sources, kept)),
            by_row.with_flat_values(tf.gather(sources, next_ - 1) + 1),
        )


def _by_row(values: tf.Tensor, rows: tf.Tensor, strings: tf.Tensor) -> tf.RaggedTensor:
    count = tf.size(strings, tf.int64)
    return tf.RaggedTensor.from_value_rowids(values, rows, count, validate=False)


def _pieces(
    strings: tf.Tensor, tables: Tables, with_sources: bool = False
) -> tuple[tf.Tensor, ...]:
    """The pieces' ids, int32 (P,), their first letters, int64 (P,), and the letters' origins."""
    packed, *origins = letters(strings, tables.characters, tables.special_tokens, with_sources)

    # A word starts at a letter after a space, at one that stands alone, and after such a one.
    cut = apart(packed)
    starts = cut | tf.concat([[True], cut[:-1]], 0)[: tf.size(cut)] | differs(origins[0])
    letter = tf.where(~_has(packed, SPACE))[:, 0]
    starts, *origins = (tf.gather(x, letter) for x in (starts, *origins))
    symbols = tf.bitwise.right_shift(tf.gather(packed, letter), 8)

    # `found` holds each piece's id at its first letter; a word that failed becomes [UNK].
    found = _longest_pieces(symbols, starts, tables)
    word = tf.cumsum(tf.cast(starts, tf.int32)) - 1
    failed = tf.math.segment_max(tf.cast(found == FAILED, tf.int32), word)
    failed = tf.gather(failed, word) > 0
    kept = tf.where(tf.where(failed, starts, found >= 0))[:, 0]
    return tf.gather(tf.where(failed, tables.unk_id, found), kept), kept, *origins


def letters(
    strings: tf.Tensor,
    characters: PackedCharacters,
    special_tokens: dict[str, int],
    with_sources: bool = False,
) -> tuple[tf.Tensor, ...]:
    """The packed letters and spaces of strings (B,): int32 (M,), and their origins.

    These are the rows, int64 (M,), and where it's asked for, the sources, int32 (M,): which
    code point of its string each letter comes from.
    """
    decoded = tf.strings.unicode_decode(strings, "UTF-8", errors="ignore")
    origins = [decoded.value_rowids()]
    if with_sources:
        first = tf.gather(tf.cast(decoded.row_starts(), tf.int32), origins[0])
        origins.append(tf.range(tf.size(first)) - first)
    codes, packed, *origins = _looked_up(decoded.flat_values, origins, characters, special_tokens)
    return _letters(codes, packed, origins, characters)


def apart(packed: tf.Tensor) -> tf.Tensor:
    """Which characters end the word before them: spaces, and words of their own."""
    return _has(packed, SPACE | WORD)


def differs(rows: tf.Tensor) -> tf.Tensor:
    """Whether an element's row isn't the one before it's."""
    return rows != tf.concat([[-1], rows[:-1]], 0)[: tf.size(rows)]


def _looked_up(
    codes: tf.Tensor,
    origins: list[tf.Tensor],
    characters: PackedCharacters,
    special_tokens: dict[str, int],
) -> tuple[tf.Tensor, ...]:
    """Code points, their packed characters and origins, without those that are dropped."""
    page = tf.gather(characters.page_of, tf.bitwise.right_shift(codes, 8))
    packed = tf.gather(characters.pages, page * 256 + tf.bitwise.bitwise_and(codes, 255))
    for name, symbol in special_tokens.items():
        # One symbol at the token's first character, nothing at the others.
        num_starts = tf.maximum(tf.size(codes) - len(name) + 1, 0)
        matches = origins[0][:num_starts] == origins[0][len(name) - 1 :]
        for i, letter in enumerate(name):
            matches &= codes[i : i + num_starts] == ord(letter)
        first = tf.where(matches)
        packed = tf.tensor_scatter_nd_update(
            packed,
            tf.concat([first + i for i in range(len(name))], 0),
            tf.repeat([symbol << 8 | WORD] + [DROP] * (len(name) - 1), tf.size(first)),
        )
    kept = tf.where(~_has(packed, DROP))[:, 0]
    return tuple(tf.gather(x, kept) for x in (codes, packed, *origins))


def _letters(
    codes: tf.Tensor,
    packed: tf.Tensor,
    origins: list[tf.Tensor],
    characters: PackedCharacters,
) -> tuple[tf.Tensor, ...]:
    """Characters -> packed letters and spaces, with their origins."""
    if characters.final_sigma:
        sigma = codes == ord(CAPITAL_SIGMA)
        packed = tf.cond(
            tf.reduce_any(sigma),
            lambda: _with_final_sigmas(packed, origins[0], sigma, characters.final_sigma),
            lambda: packed,
        )
    packed, *origins = tf.cond(
        tf.reduce_any(_has(packed, MANY)),
        lambda: _expanded(packed, origins, characters.expansions),
        lambda: (packed, *origins),
    )
    if characters.mark_class.size:
        packed, *origins = _in_canonical_order(packed, origins, characters.mark_class)
    return packed, *origins


def _has(packed: tf.Tensor, bit: int) -> tf.Tensor:
    return tf.bitwise.bitwise_and(packed, bit) > 0


def _with_final_sigmas(
    packed: tf.Tensor, rows: tf.Tensor, sigma: tf.Tensor, final_sigma: int
) -> tf.Tensor:
    """A sigma is final after a cased letter and not before one, whatever may be ignored between."""
    solid = tf.where(~_has(packed, IGNORABLE))[:, 0]
    cased = tf.gather(_has(packed, CASED), solid)
    first = differs(tf.gather(rows, solid))
    last = tf.concat([first[1:], [True]], 0)
    after_cased = tf.concat([[False], cased[:-1]], 0) & ~first
    before_cased = tf.concat([cased[1:], [False]], 0) & ~last
    final = tf.boolean_mask(solid, tf.gather(sigma, solid) & after_cased & ~before_cased)
    return tf.tensor_scatter_nd_update(
        packed, final[:, None], tf.fill([tf.size(final)], final_sigma)
    )


def _expanded(
    packed: tf.Tensor, origins: list[tf.Tensor], expansions: np.ndarray
) -> tuple[tf.Tensor, ...]:
    """Puts all letters of a character in its place."""
    many = _has(packed, MANY)
    letters = tf.gather(expansions, tf.where(many, tf.bitwise.right_shift(packed, 8), 0))
    rest = tf.fill([tf.size(packed), expansions.shape[1] - 1], -1)
    single = tf.concat([packed[:, None], rest], 1)
    table = tf.where(many[:, None], tf.where(letters < 0, -1, letters * 256), single)
    place = tf.where(table >= 0)
    return tf.gather_nd(table, place), *(tf.gather(x, place[:, 0]) for x in origins)


def _in_canonical_order(
    packed: tf.Tensor, origins: list[tf.Tensor], mark_class: np.ndarray
) -> tuple[tf.Tensor, ...]:
    """Sorts each run of marks by combining class, as NFD does; the origins stay in order."""
    symbol = tf.where(_has(packed, STARTER_MARK), 0, tf.bitwise.right_shift(packed, 8))
    class_ = tf.gather(mark_class, symbol)
    run = tf.cumsum(tf.cast((class_ == 0) | differs(origins[0]), tf.int64))
    kept = tf.where(~_has(packed, STARTER_MARK))[:, 0]
    order = tf.argsort(tf.gather(run * 256 + tf.cast(class_, tf.int64), kept), stable=True)
    packed, *origins = (tf.gather(x, kept) for x in (packed, *origins))
    return tf.gather(packed, order), *origins


NOTHING, FAILED = -1, -2


def _longest_pieces(symbols: tf.Tensor, starts: tf.Tensor, tables: Tables) -> tf.Tensor:
    """Walks the trie with all words at once, a letter of each in a step.

    `symbols` int32 (M,) are the letters of all words, `starts` bool (M,) is true where a word
    starts. Returns int32 (M,): at the first letter of each piece its id, FAILED where there's
    none, and NOTHING elsewhere.
    """
    num_letters = tf.size(symbols)
    begin = tf.cast(tf.where(starts)[:, 0], tf.int32)
    end = tf.concat([begin[1:], [num_letters]], 0)[: tf.size(begin)]
    short = end - begin <= tables.max_chars_per_word
    found = tf.where(starts, FAILED, NOTHING)
    begin, end = tf.boolean_mask(begin, short), tf.boolean_mask(end, short)
    keys, accepts = tf.constant(tables.keys), tf.constant(tables.accepts)
    symbols = tf.cast(symbols, tf.int64)

    # Of each word: where its piece begins and it ends, the letter and the state walked to,
    # and the longest piece so far with its end.
    def step(
        found: tf.Tensor,
        begin: tf.Tensor,
        end: tf.Tensor,
        here: tf.Tensor,
        state: tf.Tensor,
        piece: tf.Tensor,
        piece_end: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        key = state * tables.num_symbols + tf.gather(symbols, tf.minimum(here, num_letters - 1))
        edge = tf.searchsorted(keys, key)
        goes_on = (tf.gather(keys, edge) == key) & (here < end)
        here += 1
        accepted = tf.gather(accepts, edge)
        longer = goes_on & (accepted >= 0)
        next_piece = tf.where(longer, accepted, piece)
        next_end = tf.where(longer, here, piece_end)

        is_last = longer & (here == end)
        settled = tf.where(~goes_on | is_last)
        found = tf.tensor_scatter_nd_update(
            found, tf.gather(begin, settled), tf.gather(next_piece, settled[:, 0])
        )
        begin = tf.where(goes_on, begin, piece_end)
        here = tf.where(goes_on, here, piece_end)
        state = tf.where(goes_on, tf.cast(edge, tf.int64) + 2, 1)
        next_piece = tf.where(goes_on, next_piece, FAILED)

        alive = tf.where(tf.where(goes_on, ~is_last, piece != FAILED))[:, 0]
        rest = (begin, end, here, state, next_piece, next_end)
        return found, *(tf.gather(x, alive) for x in rest)

    none = tf.fill(tf.shape(begin), FAILED)
    state = tf.zeros_like(begin, tf.int64)
    loop = (found, begin, end, begin, state, none, begin)
    shapes = (tf.TensorShape([None]),) * len(loop)
    return tf.while_loop(
        lambda found, begin, *_: tf.size(begin) > 0, step, loop, shapes, parallel_iterations=1
    )[0]


@tf.autograph.experimental.do_not_convert
def model_inputs(
    parts: list[tf.RaggedTensor],
    kept: list[tf.Tensor] | None,
    cls_id: int,
    sep_id: int,
    pad_id: int,
) -> dict[str, tf.Tensor]:
    """Joins the ids of texts, or of texts and their pairs, into the inputs of a model.

    Of each text the first `kept`, int32 (B,), ids stay. The outputs are int32 (B, T).
    """
    if kept is not None:
        parts = [_truncated(ids, lengths) for ids, lengths in zip(parts, kept, strict=True)]
    joined, segments = joined_parts(parts, cls_id, sep_id)
    # A batch without rows has no longest one, and a model reads the first token of each.
    longest = tf.cast(tf.maximum(joined.bounding_shape()[1], 1), tf.int64)
    shape = tf.stack([joined.nrows(tf.int64), longest])
    return {
        "token_ids": joined.to_tensor(pad_id, shape=shape),
        "segment_ids": segments.to_tensor(shape=shape),
        "padding_mask": tf.ones_like(joined).to_tensor(shape=shape),
    }


def joined_parts(
    parts: Sequence[tf.RaggedTensor], cls_id: int, sep_id: int
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """[CLS] part [SEP], or [CLS] part [SEP] part [SEP], and its segments: int32 (B, None) each."""
    rows = parts[0].nrows()
    parts = [tf.concat([ids, tf.fill([rows, 1], sep_id)], axis=1) for ids in parts]
    parts[0] = tf.concat([tf.fill([rows, 1], cls_id), parts[0]], axis=1)
    segments = [tf.zeros_like(parts[0]), *(tf.ones_like(ids) for ids in parts[1:])]
    return tf.concat(parts, axis=1), tf.concat(segments, axis=1)


def _truncated(ids: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """Keeps the first `lengths`, int32 (B,), values of each row."""
    rows = ids.value_rowids()
    position = tf.range(tf.size(rows, tf.int64)) - tf.gather(ids.row_starts(), rows)
    kept = position < tf.gather(tf.cast(lengths, tf.int64), rows)
    return tf.ragged.boolean_mask(ids, ids.with_flat_values(kept))
