"""Plain text files -> documents -> sentences, for pretraining."""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast, get_args

from keras_bert.errors import InputError
from keras_bert.tokenizers import WordPiece

DocumentBreak = Literal["blank", "heading", "file"]

# A heading is a whole line of one of these forms.
HEADING = re.compile(
    r"""
      =\s(?!=).+(?<!=)\s=                       # "= Title =": WikiText, level 1 only
    | (?i:chapter)\s+(?:[IVXLCDM]+|[ivxlcdm]+|\d+)
      (?:[.:]\s*.{0,80})?                       # "CHAPTER IV.", "Chapter 4: The Storm"
    | 第[一二三四五六七八九十百千零〇两\d]{1,9}[回章卷]
      (?:[\s:：].{0,80})?                       # "第三回  贾雨村夤缘复旧职", not "第四回中既将..."
    """,
    re.VERBOSE,
)

# Scripts written without spaces between words (Korean has them).
_CJK = re.compile(
    r"[\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)


def read_documents(
    path: str | os.PathLike[str], document_break: DocumentBreak = "blank", unwrap: bool = False
) -> Iterator[list[str]]:
    r"""Yields the documents of a UTF-8 text file, each a list of stripped, non-empty paragraphs.

    A line with nothing but spaces, control or zero-width characters is blank. Nothing that
    isn't blank is left out.

    Args:
        path: The file; lines end with "\n" or "\r\n" (U+2028 is no line break).
        document_break: What ends a document. `"blank"`: a blank line. `"heading"`: the line
            before a heading, see `HEADING`, which opens its document; text before the first
            heading is a document of its own; headings in a row (a table of contents, "Part I"
            above "Chapter I") stay together. `"file"`: the end of the file.
        unwrap: False: each line is a paragraph. True: a paragraph is the lines up to a blank
            line, joined (books with hard-wrapped lines).

    Raises:
        InputError: the file is missing, isn't UTF-8 (names the line) or holds no text.
    """
    if document_break not in get_args(DocumentBreak):
        raise ValueError(
            "`document_break` must be 'blank', 'heading' or 'file'. "
            f"Received: document_break={document_break!r}."
        )
    return _documents(path, document_break, unwrap)


def _documents(
    path: str | os.PathLike[str], document_break: DocumentBreak, unwrap: bool
) -> Iterator[list[str]]:
    empty = True
    document: list[str] = []
    body: list[str] = []  # the paragraphs of `document` that aren't headings
    wrapped: list[str] = []  # the lines of an unfinished paragraph

    for line in itertools.chain(_lines(path), [""]):
        is_heading = document_break == "heading" and HEADING.fullmatch(line) is not None
        if wrapped and (not line or is_heading):
            paragraph = _join(wrapped)
            document.append(paragraph)
            body.append(paragraph)
            wrapped = []
        if (document_break == "blank" and not line) or (is_heading and body):
            if document:
                yield document
            document, body = [], []
        if not line:
            continue
        empty = False
        if unwrap and not is_heading:
            wrapped.append(line)
        else:
            document.append(line)
            if not is_heading:
                body.append(line)

    if document:
        yield document
    if empty:
        raise InputError(f"{path} holds no text: give a file with a line that isn't blank.")


def _lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields stripped lines, "" for a blank one."""
    if not os.path.isfile(path):
        raise InputError(f"{path} isn't a file: check the path.")
    with open(path, "rb") as file:  # bytes: a text file would hide the number of a bad line
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}, line {number}: byte {line[error.start]:#04x} isn't UTF-8; "
                    "save the file as UTF-8."
                ) from error
            yield "" if all(_is_invisible(character) for character in text) else text


def _is_invisible(character: str) -> bool:
    return character.isspace() or unicodedata.category(character) in ("Cc", "Cf")


def _join(lines: list[str]) -> str:
    text = lines[0]
    for line in lines[1:]:
        is_spaceless = _CJK.match(text[-1]) and _CJK.match(line[0])
        text += line if is_spaceless else " " + line
    return text


_MARK = re.compile(r"[.!?。！？；．…]+")
_CLOSERS = frozenset("\"'”’」』）)］]】》〉»")
# What may open the next English sentence: a quotation mark, or a character that isn't lower case.
_OPENING = re.compile(r"\s+[_*(\[{—-]*(?:[\"'“‘«「『]|(?P<first>[^\W_]))")
_LAST_WORD = re.compile(r"[\w.]+$")
_INITIALS = re.compile(r"[A-Z](?:\.[A-Z])*|[a-z](?:\.[a-z])+")  # "J", "U.S", "e.g", "i.e", "p.m"
# Without those that end sentences as often: "etc.", "Jr.", "Sun.", "No." (see below).
_ABBREVIATIONS = re.compile(
    "mr|mrs|ms|dr|st|prof|rev|hon|messrs|mme|mlle|gen|col|maj|capt|lt|sgt|gov|sen|rep|pres|"
    "vs|cf|figs?|vols?|pp|ed|eds|al|approx|dept|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec",
    re.IGNORECASE,
)


def split_sentences(text: str) -> list[str]:
    """Splits English or Chinese text into stripped sentences; no character but spaces is lost.

    `。！？；` and `．` end a sentence wherever they stand (`．` not before a digit, `…` only
    before a Chinese or Japanese character). `. ! ? …` end one before a space and a quotation
    mark, a digit or a letter that isn't lower case; a "." not after an abbreviation (Mr., e.g.),
    an initial (J., U.S.) or the number of a list item. Closing quotes and brackets stay with
    their sentence.
    """
    sentences = []
    start = 0
    num_quotes, counted = 0, 0  # straight quotation marks before `counted`: odd = inside one
    for mark in _MARK.finditer(text):
        num_quotes += text.count('"', counted, mark.start())
        counted = mark.start()
        end = _end_of_closers(text, mark, num_quotes % 2 == 1)
        if _ends_sentence(text, start, mark, end):
            sentences.append(text[start:end].strip())
            start = end
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _end_of_closers(text: str, mark: re.Match[str], is_quoted: bool) -> int:
    # Without a space after a full-width mark, a straight quote may well open the next sentence.
    is_wide = mark.group()[-1] in "。！？；．…"
    end = mark.end()
    while end < len(text) and text[end] in _CLOSERS:
        if text[end] == '"' and is_wide and not is_quoted:
            break
        end += 1
    return end


def _ends_sentence(text: str, start: int, mark: re.Match[str], end: int) -> bool:
    last = mark.group()[-1]
    if last in "。！？；":
        return True
    if last == "．" and not text[end : end + 1].isdigit():
        return True
    if last == "…" and _CJK.match(text, end):
        return True
    opening = _OPENING.match(text, end)
    if opening is None or (opening["first"] or "").islower():
        return False
    if mark.group() != "." or end > mark.end():
        return True
    word = _LAST_WORD.search(text, max(start, mark.start() - 20), mark.start())
    if word is None:
        return True
    if word.group() == "No" and (opening["first"] or "").isdigit():
        return False
    is_list_number = word.group().isdigit() and not text[start : word.start()].strip()
    is_initial = _INITIALS.fullmatch(word.group()) and word.group() != "I"
    return not (is_list_number or is_initial or _ABBREVIATIONS.fullmatch(word.group()))


def tokenize_documents(
    documents: Sequence[list[str]], tokenizer: WordPiece, workers: int = 1
) -> Iterator[list[list[int]]]:
    """Yields, for each document, the token ids of its sentences that aren't without any.

    The result is the same for any number of workers. With more than one, each is a process
    that imports this package anew: worth it from some tens of megabytes of text on.
    """
    if workers == 1:
        yield from (_tokenize(document, tokenizer) for document in documents)
        return
    with concurrent.futures.ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),  # TensorFlow doesn't survive a fork
        initializer=_start_worker,
        initargs=(tokenizer.vocabulary, tokenizer.get_config()),
    ) as executor:
        yield from executor.map(_tokenize_in_worker, documents, chunksize=4)


def _tokenize(document: list[str], tokenizer: WordPiece) -> list[list[int]]:
    sentences = [sentence for text in document for sentence in split_sentences(text)]
    rows = cast(list[list[int]], tokenizer(sentences))
    return [token_ids for token_ids in rows if token_ids]


_worker_tokenizer: WordPiece  # one in each worker process


def _start_worker(vocabulary: list[str], config: dict[str, Any]) -> None:
    global _worker_tokenizer
    _worker_tokenizer = WordPiece(vocabulary, **config)


def _tokenize_in_worker(document: list[str]) -> list[list[int]]:
    return _tokenize(document, _worker_tokenizer)
