"""Warnings about a tokenizer that fits its vocabulary, its texts or its model badly.

Each of these mistakes trains without an error and costs accuracy.
"""

from __future__ import annotations

import collections
import warnings
from collections.abc import Iterable
from typing import Any

from keras_bert.tokenizers import WordPiece
from keras_bert.unicode_table import load_table

# A lower-casing vocabulary may hold a few names in capitals, added by hand. Where case is kept,
# a third of the words have capitals.
MOST_CAPITALISED = 0.01
ALPHABET = 26  # fewer tokens that have a case are symbols, whose case is kept with reason

# Text that suits its vocabulary has up to 4 % (a novel with the quotation marks of a later day),
# mostly less than 0.5 %; Chinese under an English vocabulary 58 to 77 %; English with its
# capitals under an uncased one 9 %.
MOST_UNKNOWN = 0.05

# Tables are padded to multiples of up to 1,024 rows; bert-base-cased's vocabulary under
# bert-base-uncased's weights leaves 5 %.
MOST_UNUSED_ROWS = 0.04
PADDING = 128


def check_casing(tokenizer: WordPiece) -> None:
    """Warns if a tokenizer lower-cases for a vocabulary with capitals, or doesn't for one without.

    Under the former the tokens with capitals are never met, under the latter words with
    capitals are [UNK].
    """
    lower = load_table().lower
    small = {letters[0] for letters in lower.values()}
    # [CLS], <S> and their like are in capitals in every vocabulary.
    words = [token for token in tokenizer.vocabulary if not token.startswith(("[", "<"))]
    capitalised = [word for word in words if any(ord(letter) in lower for letter in word)]
    cased = len(capitalised) + sum(
        any(ord(letter) in small for letter in word) for word in set(words).difference(capitalised)
    )
    some = ", ".join(map(repr, capitalised[:3]))
    many_capitals = len(capitalised) > MOST_CAPITALISED * cased
    if many_capitals and tokenizer.lowercase:
        warnings.warn(
            f"The tokenizer lower-cases, and its vocabulary holds {len(capitalised)} tokens with "
            f"capitals (such as {some}), which it will never give: "
            "if the model is a cased one, use lowercase=False.",
            stacklevel=2,
        )
    elif not many_capitals and not tokenizer.lowercase and cased >= ALPHABET:
        warnings.warn(
            "The tokenizer keeps capitals, and its vocabulary holds "
            f"{'hardly any' if capitalised else 'none'}, so that words with capitals become "
            "[UNK]: if the model is an uncased one, use lowercase=True.",
            stacklevel=2,
        )


def check_unknown(tokenizer: WordPiece, texts: Iterable[str | bytes]) -> None:
    """Warns if more than 5 % of the texts' tokens are [UNK], and names the characters.

    A few thousand texts tell enough.
    """
    letters = {letter for token in tokenizer.vocabulary for letter in token}
    num_tokens = num_unknown = 0
    missing: collections.Counter[str] = collections.Counter()
    for text in texts:
        text = text.decode("utf-8", errors="ignore") if isinstance(text, bytes) else text
        encoding = tokenizer.encode(text)
        num_tokens += len(encoding.token_ids) - 2
        for i, (start, end) in zip(encoding.token_ids, encoding.offsets, strict=True):
            if i == tokenizer.unk_id:
                num_unknown += 1
                spelled = "".join(tokenizer.splitter.words(text[start:end]))
                missing.update(letter for letter in spelled if letter not in letters)
    if num_unknown <= MOST_UNKNOWN * num_tokens:
        return
    worst = ", ".join(f"{_shown(letter)} ({n:,})" for letter, n in missing.most_common(5))
    warnings.warn(
        f"{num_unknown:,} of {num_tokens:,} tokens ({num_unknown / num_tokens:.0%}) are [UNK]: the "
        "vocabulary may be of another language or casing than the texts. "
        + (
            f"It lacks, with their counts, {worst}."
            if worst
            else "It has every letter, but not these words."
        ),
        stacklevel=2,
    )


def check_rows(tokenizer: WordPiece, config: Any) -> None:
    """Warns if the token table has many more rows than there are tokens.

    Some are usual: tables are padded to round numbers. Many more mean that vocabulary and
    weights belong to different models, so that every id names a wrong vector.
    """
    rows, tokens = config.vocabulary_size, tokenizer.vocabulary_size
    if rows - tokens >= PADDING and rows - tokens > MOST_UNUSED_ROWS * rows:
        warnings.warn(
            f"The vocabulary has {tokens:,} tokens and the model's token table {rows:,} rows, more "
            "than padding explains: check that the vocabulary is that of the model.",
            stacklevel=2,
        )


def _shown(letter: str) -> str:
    name = f"U+{ord(letter):04X}"
    return f"{letter!r} {name}" if letter.isprintable() else name
