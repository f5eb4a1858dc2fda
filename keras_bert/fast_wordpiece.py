"""WordPiece for `tf.data`: TF-Text's linear-time walk behind an exact normalisation.

TF-Text splits and lower-cases by tables of its own, which aren't BERT's. So it is handed text in
which nothing is left to decide. ASCII stays as it is: there both agree. Of the other letters the
vocabulary and the texts get the same stand-ins, ideographs for letters that are words of their
own, which TF-Text always splits, and private-use characters for the rest, which it never does.

This module imports TensorFlow and TF-Text, and `tokenizers` imports it where a graph is made.
"""

import itertools
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text

from keras_bert import wordpiece_graph
from keras_bert.packed_characters import PackedCharacters, pack_characters
from keras_bert.unicode_table import (
    CJK,
    DROP,
    PUNCTUATION,
    SPACE,
    WordSplitter,
    load_table,
)

# Stand-ins; the first of each are of three bytes.
ALONE = (range(0x4E00, 0xA000), range(0x20000, 0x2A6E0))
JOINED = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE))


class Tables(NamedTuple):
    """A tokenizer as arrays and as TF-Text's model."""

    characters: PackedCharacters  # a symbol is a code point: itself in ASCII, else its stand-in
    special_tokens: dict[str, int]  # those to be read in a text, with a stand-in for each
    unknown: int  # the stand-in of joined letters that the vocabulary lacks
    plain: str  # a regular expression: the texts that need lower-casing at most
    lowercase: bool
    model: np.ndarray  # uint8, TF-Text's buffer
    ids: np.ndarray  # int32, the ids of the model's tokens, [UNK] first
    max_chars_per_word: int


@tf.autograph.experimental.do_not_convert
def make_tables(
    splitter: WordSplitter,
    first_pieces: dict[str, int],
    later_pieces: dict[str, int],
    special_tokens: tuple[str, ...],
    unk_id: int,
    max_chars_per_word: int,
) -> Tables:
    """Makes the arrays and the model; the arguments are those of `wordpiece_graph`'s."""
    properties = load_table().properties
    stands_alone = properties & (PUNCTUATION | (CJK if splitter.split_cjk else 0)) > 0
    alone, joined = itertools.chain(*ALONE), itertools.chain(*JOINED)
    suffix, unk, unknown = itertools.islice(joined, 3)
    symbol_of = np.where(stands_alone, next(alone), unknown).astype(np.int32)
    symbol_of[properties & SPACE > 0] = ord(" ")
    symbol_of[:128] = np.arange(128)
    for code in sorted({ord(x) for piece in (*first_pieces, *later_pieces) for x in piece}):
        if code >= 128 and not properties[code] & (SPACE | DROP):
            symbol_of[code] = next(alone if stands_alone[code] else joined)
    special = {name: next(alone) for name in special_tokens}

    tokens, ids = [chr(unk)], [unk_id]
    for start, pieces in (("", first_pieces), (chr(suffix), later_pieces)):
        for piece, i in pieces.items():
            codes = np.array([ord(x) for x in piece])
            if piece in special:
                token = chr(special[piece])
            elif np.any(properties[codes] & (SPACE | DROP)) or (
                np.any(stands_alone[codes]) and len(start + piece) > 1
            ):
                continue  # no word holds it
            else:
                token = "".join(map(chr, symbol_of[codes]))
            tokens.append(start + token)
            ids.append(i)

    # Where words are that long, the texts of longer ones go the other way: RE2 counts to 1,000.
    letter = r"[!-Z\\-~]" if special else "[!-~]"
    word = f"{letter}{{0,{min(max_chars_per_word, 1000)}}}"
    num_symbols = 1 + max([int(symbol_of.max()), *special.values()])
    return Tables(
        characters=pack_characters(splitter, symbol_of, num_symbols),
        special_tokens=special,
        unknown=unknown,
        plain=f"(?:{word}[ \t\n\r]+)*{word}",
        lowercase=splitter.lowercase,
        model=np.frombuffer(
            tensorflow_text.build_fast_wordpiece_model(
                tokens, 4 * max_chars_per_word, chr(suffix), chr(unk), False, False
            ),
            np.uint8,
        ),
        ids=np.array(ids, np.int32),
        max_chars_per_word=max_chars_per_word,
    )


def token_ids(strings: tf.Tensor, tables: Tables) -> tf.RaggedTensor:
    """The ids of each string: string (B,) -> int32 RaggedTensor (B, None)."""
    with tf.device("/device:CPU:0"):
        plain = tf.strings.regex_full_match(strings, tables.plain)
        texts = tf.strings.lower(strings) if tables.lowercase else strings
        others = tf.where(~plain)
        texts = tf.cond(
            tf.reduce_all(plain),
            lambda: texts,
            lambda: tf.tensor_scatter_nd_update(
                texts, others, _normalised(tf.gather_nd(strings, others), tables)
            ),
        )
        model = tf.constant(tables.model)
        found = tensorflow_text.FastWordpieceTokenizer(model_buffer=model).tokenize(texts)
        return found.with_flat_values(tf.gather(tables.ids, found.flat_values))


def _normalised(strings: tf.Tensor, tables: Tables) -> tf.Tensor:
    """The strings (B,) in the letters that the model reads."""
    packed, rows = wordpiece_graph.letters(strings, tables.characters, tables.special_tokens)
    codes = tf.bitwise.right_shift(packed, 8)
    spelled = tf.RaggedTensor.from_value_rowids(
        codes, rows, tf.size(strings, tf.int64), validate=False
    )
    # A text no longer than a word may be holds no word that's too long.
    codes = tf.cond(
        tf.reduce_max(spelled.row_lengths()) > tables.max_chars_per_word,
        lambda: _without_long_words(codes, rows, wordpiece_graph.apart(packed), tables),
        lambda: codes,
    )
    return tf.strings.unicode_encode(spelled.with_flat_values(codes), "UTF-8")


def _without_long_words(
    codes: tf.Tensor, rows: tf.Tensor, apart: tf.Tensor, tables: Tables
) -> tf.Tensor:
    """Makes the first letter of each word that is too long an unknown one."""
    bound = tf.where(apart | wordpiece_graph.differs(rows))[:, 0]
    end = tf.concat([bound[1:], [tf.size(codes, tf.int64)]], 0)
    begin = bound + tf.cast(tf.gather(apart, bound), tf.int64)
    long = tf.boolean_mask(begin, end - begin > tables.max_chars_per_word)
    return tf.tensor_scatter_nd_update(
        codes, long[:, None], tf.fill([tf.size(long)], tables.unknown)
    )
