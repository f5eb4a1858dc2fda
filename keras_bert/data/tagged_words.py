"""Tagged words: reading the files people have, and batches of them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.data.fitting import Shape
from keras_bert.data.packing import joined, pack
from keras_bert.data.task_batches import Batch, task_batches
from keras_bert.data.text_files import read_text
from keras_bert.entities import OUTSIDE, is_entity_tag
from keras_bert.errors import InputError
from keras_bert.tokenizers import WordPiece
from keras_bert.windows import given_words, word_windows

WORDS_KEYS, TAGS_KEYS = ("words", "tokens"), ("tags", "ner_tags")
# Columns of a file whose first column numbers the words: its number of columns -> those of the
# word and the tag. CoNLL-U has the universal part of speech, UNER's iob2 the entity.
NUMBERED = {10: (1, 3), 5: (1, 2)}
NO_TAG = "_"
# In CoNLL-U, 1-2 is a written word that the next two make up, and 8.1 one that isn't written.
_NUMBER, _NO_WORD = re.compile(r"[0-9]+([-.][0-9]+)?"), re.compile(r"[0-9]+[-.][0-9]+")


class TaggedSentence(NamedTuple):
    """Words with a tag each, or without tags, (); `line` is the first word's in its file."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: int


class _Word(NamedTuple):
    word: str
    tag: str  # "": none
    line: int


def read_tagged_sentences(
    path: str | os.PathLike[str], tag_column: int | None = None, *, needs_tags: bool = True
) -> list[TaggedSentence]:
    """Reads tagged sentences: CoNLL columns, CoNLL-U, UNER's iob2 or JSON lines.

    - Columns: a word a line, in the first column, its tag in the last; sentences are parted by
      blank lines. Columns are parted by tabs, or else by blanks.
    - CoNLL-U and iob2: columns of which the first numbers the words; the tag is the universal
      part of speech, or the entity. Comments, multiword ranges (`1-2`) and empty nodes (`8.1`)
      are skipped.
    - JSON lines: `words` or `tokens`, and `tags` or `ner_tags`, lists of strings.

    Tags are kept as they are, in any of the schemes of `keras_bert.entities`.

    Args:
        path: The file.
        tag_column: Another column of tags, counted from 1.
        needs_tags: Whether to refuse a file without tags: of one column, with `_` or nothing in
            the column of tags, or JSON lines without the key of tags.

    Raises:
        InputError: a file that isn't there, isn't UTF-8 or holds no sentence; a line that isn't
            what its file's first is; a word without a tag; entity tags such as `B-person` beside
            tags without a prefix. The message names the line.
    """
    text = read_text(path)
    if "\r" in text.rstrip("\r") and "\n" not in text:
        raise InputError(f"{path}: its lines end in CR alone. Convert them to LF.")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    start = next((line for line in lines if line.strip()), "")
    if start.lstrip().startswith("{"):
        found = list(_json_sentences(lines, path, needs_tags))
    else:
        found = list(_column_sentences(lines, path, tag_column, needs_tags))
    if not found:
        raise InputError(f"{path} holds no words.")
    has_tags = needs_tags or _has_tags(found, path)
    if has_tags:
        _check_one_kind(found, path)
    return [
        TaggedSentence(
            tuple(w.word for w in words),
            tuple(w.tag for w in words) if has_tags else (),
            words[0].line,
        )
        for words in found
    ]


def _column_sentences(
    lines: list[str], path: Any, tag_column: int | None, needs_tags: bool
) -> Iterator[list[_Word]]:
    first = next((line for line in lines if line.strip() and not line.startswith("# ")), "")
    separator = re.compile("\t" if "\t" in first else "[ \t]+")
    columns = separator.split(first.strip(" "))
    count, word_column = len(columns), 0
    numbered = count in NUMBERED and bool(_NUMBER.fullmatch(columns[0]))
    column = -1
    if numbered:
        word_column, column = NUMBERED[count]
    is_bare = count == 1 and not needs_tags
    if tag_column is not None and not is_bare:
        if not 1 <= tag_column <= count or tag_column - 1 == word_column:
            raise InputError(
                f"{path} has {count} columns, and words in column {word_column + 1}: tags can't "
                f"be in column {tag_column}."
            )
        column = tag_column - 1

    sentence: list[_Word] = []
    for number, line in enumerate([*lines, ""], 1):
        if not line.strip():
            if sentence:
                yield sentence
            sentence = []
            continue
        if numbered and line.startswith("#"):
            continue
        columns = separator.split(line if "\t" in first else line.strip(" "))
        if len(columns) != count or (count < 2 and not is_bare):
            wanted = f"{count} columns as above" if count > 1 else "a word and its tag"
            wanted = "a word alone as above" if is_bare else wanted
            raise InputError(f"{path}, line {number}: expected {wanted}. Received: {line!r:.80}.")
        if columns[0] == "-DOCSTART-" or (numbered and _NO_WORD.fullmatch(columns[0])):
            continue
        if numbered and not _NUMBER.fullmatch(columns[0]):
            raise InputError(
                f"{path}, line {number}: the first column must number the words. "
                f"Received: {columns[0]!r:.80}."
            )
        word, tag = columns[word_column], "" if is_bare else columns[column].strip()
        if not word or (needs_tags and not tag):
            fault = "tag" if word else "word"
            raise InputError(
                f"{path}, line {number}: the {fault} is empty. Received: {line!r:.80}."
            )
        sentence.append(_Word(word, tag, number))


def _json_sentences(lines: list[str], path: Any, needs_tags: bool) -> Iterator[list[_Word]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON, {error}.") from None
        words = _strings(row, WORDS_KEYS, where)
        if needs_tags or any(key in row for key in TAGS_KEYS):
            tags = _strings(row, TAGS_KEYS, where)
        else:
            tags = [""] * len(words)
        if len(words) != len(tags) or not words:
            raise InputError(
                f"{where}: every word must have a tag. Received: {len(words)} words and "
                f"{len(tags)} tags."
            )
        if needs_tags and "" in tags:
            raise InputError(f"{where}: the tag of word {tags.index('') + 1} is empty.")
        yield [_Word(word, tag, number) for word, tag in zip(words, tags, strict=True)]


def _strings(row: Any, keys: tuple[str, str], where: str) -> list[str]:
    key = next((key for key in keys if isinstance(row, dict) and key in row), None)
    if key is None:
        raise InputError(f"{where}: expected an object with {keys[0]!r} or {keys[1]!r}.")
    values = row[key]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(
            f"{where}: {key} must be a list of strings (names of tags, not their numbers). "
            f"Received: {str(values)[:80]}."
        )
    if any("\ud800" <= char <= "\udfff" for value in values for char in value):
        raise InputError(f"{where}: {key} holds half of a surrogate pair, which is no text.")
    return values


def _has_tags(sentences: list[list[_Word]], path: Any) -> bool:
    """Whether the words have tags; all must or none."""
    words = [word for sentence in sentences for word in sentence]
    if {word.tag for word in words} <= {"", NO_TAG}:
        return False
    for word in words:
        if not word.tag:
            raise InputError(
                f"{path}, line {word.line}: the word {word.word!r} has no tag, and others have: "
                "give all words of a file one or none."
            )
    return True


def _check_one_kind(sentences: list[list[_Word]], path: Any) -> None:
    """Tags with a prefix and tags without can't both be meant."""
    first: dict[bool, _Word] = {}
    for sentence in sentences:
        for word in sentence:
            if word.tag != OUTSIDE:
                first.setdefault(is_entity_tag(word.tag), word)
    if len(first) == 2:
        raise InputError(
            f"{path}, line {first[False].line}: the tag {first[False].tag!r} must have a prefix as "
            f"{first[True].tag!r} of line {first[True].line} has: give all tags one or none."
        )


def tagging(
    sentences: Sequence[TaggedSentence],
    tokenizer: WordPiece,
    labels: Sequence[str],
    batch_size: int,
    *,
    max_sequence_length: int = 128,
    layout: str = "padded",
    crf: bool = False,
    row_multiple: int = 1,
    seed: int = 0,
    training: bool = True,
) -> tf.data.Dataset:
    """Batches of (inputs, labels, weights) from tagged sentences, for `fit` on any backend.

    A word's tag stands at its first piece; the other pieces, [CLS], [SEP] and padding weigh 0. A
    sentence too long for the model becomes windows that overlap by half, and each of its words
    has weight in the one in which it has the most context: no word is dropped, and none counts
    twice. A word in which the tokenizer finds nothing has no piece, hence no part in training.

    Inputs `token_ids`, `segment_ids`, `padding_mask`, int32 (B, T); labels and weights
    `{"labels": (B, T)}`, int32 and float32. Logits are per token, so that a model takes packed
    rows as it is.

    Args:
        sentences: From `read_tagged_sentences`.
        tokenizer: Of the model.
        labels: Tags in the order of the logits.
        batch_size: Windows in a batch, over all replicas; a sentence mostly is one.
        max_sequence_length: Tokens of the longest row.
        layout: As for `task_batches`: a window a row, or several; the numbers are the same.
        crf: Mark the tokens without a tag as `layers.crf.CrfLoss` wants it: -1, and -2 at [CLS].
        row_multiple: What the number of rows must be a multiple of: replicas times micro-batches.
        seed: For the order.
        training: Whether to shuffle.

    Raises:
        InputError: A tag isn't in `labels` (in training; else the word weighs 0), or no sentence
            has a piece.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 5.3.
    """
    token_ids: list[list[int]] = []
    classes: list[list[int]] = []  # -1: no word's first token; -2: [CLS]
    indices = {label: i for i, label in enumerate(labels)}
    for sentence in sentences:
        unknown = [tag for tag in sentence.tags if tag not in indices]
        if unknown and training:
            raise InputError(
                f"line {sentence.line}: the tag {unknown[0]!r} isn't one of the model's "
                f"({', '.join(labels[:10])}{', ...' if len(labels) > 10 else ''})."
            )
        words = given_words(tokenizer, sentence.words)
        of_piece = np.full(len(words.ids), -1)
        for first, tag in zip(words.firsts, sentence.tags, strict=True):
            if first >= 0:
                of_piece[first] = indices.get(tag, -1)
        for start, stop, owned in word_windows(len(words.ids), max_sequence_length):
            token_ids.append([tokenizer.cls_id, *words.ids[start:stop], tokenizer.sep_id])
            shown = np.full(stop - start, -1)
            shown[owned - start] = of_piece[owned]
            classes.append([-2, *shown.tolist(), -1])
    if not token_ids:
        raise InputError("No sentence holds a word that the tokenizer finds anything in.")

    def make(numbers: np.ndarray, rows: list[list[int]], shape: Shape) -> Batch:
        ids = [token_ids[n] for n in numbers]
        inputs = pack(
            ids, [[0] * len(x) for x in ids], rows, row_length=shape.row_length,
            num_slots=shape.num_slots, pad_id=tokenizer.pad_id,
        )  # fmt: skip
        del inputs["sequence_starts"]
        flat = np.concatenate([classes[n] for n in numbers])
        counts = np.array([len(x) for x in ids])
        labelled = joined(flat, counts, rows, shape.row_length, -1)
        return (
            inputs,
            {"labels": (labelled if crf else np.maximum(labelled, 0)).astype(np.int32)},
            {"labels": (labelled >= 0).astype(np.float32)},
        )

    return task_batches(
        make, [len(ids) for ids in token_ids], batch_size, max_sequence_length,
        layout=layout, row_multiple=row_multiple, seed=seed, training=training,
    )  # fmt: skip
