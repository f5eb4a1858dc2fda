"""Lines -> documents -> sentences -> tokens, for pretraining."""

from __future__ import annotations

import bisect
import itertools
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, cast

import numpy as np

from keras_bert.data.examples import TokenizedDocuments
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


def documents_in(
    lines: Iterable[str], document_break: DocumentBreak = "blank", unwrap: bool = False
) -> Iterator[list[str]]:
    """Yields the documents in a text's lines, each a list of stripped, non-empty paragraphs.

    A line with nothing but spaces, control or zero-width characters is blank. Nothing that
    isn't blank is left out.

    Args:
        lines: The lines of one text, without or with their ends.
        document_break: What ends a document. `"blank"`: a blank line. `"heading"`: the line
            before a heading, see `HEADING`, which opens its document; text before the first
            heading is a document of its own; headings in a row (a table of contents, "Part I"
            above "Chapter I") stay together. `"file"`: the end of the lines.
        unwrap: False: each line is a paragraph. True: a paragraph is the lines up to a blank
            line, joined (books with hard-wrapped lines).
    """
    document: list[str] = []
    body: list[str] = []  # the paragraphs of `document` that aren't headings
    wrapped: list[str] = []  # the lines of an unfinished paragraph

    for line in itertools.chain(map(_stripped, lines), [""]):
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
        if unwrap and not is_heading:
            wrapped.append(line)
        else:
            document.append(line)
            if not is_heading:
                body.append(line)

    if document:
        yield document


def _stripped(line: str) -> str:
    line = line.strip()
    return "" if all(_is_invisible(character) for character in line) else line


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
_ABBREVIATIONS = frozenset(
    (
        *("mr", "mrs", "ms", "dr", "st", "prof", "rev", "hon", "messrs", "mme", "mlle", "gen"),
        *(
            "col",
            "maj",
            "capt",
            "lt",
            "sgt",
            "gov",
            "sen",
            "rep",
            "pres",
            "vs",
            "cf",
            "fig",
            "figs",
        ),
        *("vol", "vols", "pp", "ed", "eds", "al", "approx", "dept", "jan", "feb", "mar", "apr"),
        *("jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"),
    )
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
        end = mark.end()
        if text[end : end + 1] in _CLOSERS:
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
    marks = mark.group()
    if marks[-1] in "。！？；":
        return True
    if marks[-1] == "．" and not text[end : end + 1].isdigit():
        return True
    if marks[-1] == "…" and _CJK.match(text, end):
        return True
    # Asked first, being the most usual by far and quick to tell: a space and a capital.
    if text[end : end + 1] != " " or not text[end + 1 : end + 2].isupper():
        opening = _OPENING.match(text, end)
        if opening is None or (opening["first"] or "").islower():
            return False
    if marks != "." or end > mark.end():
        return True
    before = text[max(start, mark.start() - 20) : mark.start()]
    last = before.rpartition(" ")[2]
    if len(last) > 2 and last.isalpha():
        return last.lower() not in _ABBREVIATIONS
    word = _LAST_WORD.search(before)
    if word is None:
        return True
    if word.group() == "No":
        opening = _OPENING.match(text, end)
        return opening is None or not (opening["first"] or "").isdigit()
    word_start = mark.start() - len(before) + word.start()
    is_list_number = word.group().isdigit() and not text[start:word_start].strip()
    is_initial = _INITIALS.fullmatch(word.group()) and word.group() != "I"
    return not (is_list_number or is_initial or word.group().lower() in _ABBREVIATIONS)


class DocumentTokenizer:
    """Splits documents into sentences and these into tokens, with the ids of `WordPiece`.

    Args:
        tokenizer: The tokenizer.
        words: The texts are words with spaces between them, as a segmenter leaves Chinese. The
            spaces beside ideographs are no part of the text: they only tell the words.
        segment: A segmenter of your own in place of such spaces: gives a paragraph's words.
    """

    CAPACITY = 200_000  # words; some 50 MB

    def __init__(
        self,
        tokenizer: WordPiece,
        words: bool = False,
        segment: Callable[[str], list[str]] | None = None,
    ):
        self._tokenizer = tokenizer
        self._segment = segment or (str.split if words else None)
        self._pieces = _Pieces(tokenizer)

    def __call__(
        self, documents: Sequence[Sequence[str]], works: Sequence[int]
    ) -> TokenizedDocuments:
        """Tokenizes documents, each a list of paragraphs; sentences without tokens are dropped."""
        if len(self._pieces) > self.CAPACITY:
            self._pieces.clear()
        ids: list[int] = []  # _END after each sentence
        continues: list[int] = []
        num_ids = []  # up to the end of each document
        for paragraphs in documents:
            if self._segment is not None:
                for paragraph in paragraphs:
                    self._add_words(self._segment(paragraph), ids, continues)
            else:
                self._add([s for text in paragraphs for s in split_sentences(text)], ids)
            num_ids.append(len(ids))

        with_ends = np.array(ids, np.int32)
        is_end = with_ends == _END
        at = np.flatnonzero(is_end)
        ends = at - np.arange(len(at))  # in tokens
        filled = np.diff(ends, prepend=0) > 0
        return TokenizedDocuments(
            token_ids=with_ends[~is_end],
            sentence_ends=ends[filled],
            document_ends=np.append(0, np.cumsum(filled))[np.searchsorted(at, num_ids)],
            works=np.array(works, np.int64),
            continues=np.array(continues, np.int32)[~is_end] if self._segment else None,
        )

    def _add(self, sentences: list[str], ids: list[int]) -> None:
        tokenizer, pieces = self._tokenizer, self._pieces
        for is_plain, run in itertools.groupby(sentences, _is_plain):
            if not is_plain:
                for row in cast(list[list[int]], tokenizer(list(run))):
                    ids += [*row, _END]
                continue
            text = f" {_END_MARK} ".join([*run, ""])
            if tokenizer.lowercase:
                text = text.lower()
            for mark in filter(text.__contains__, string.punctuation):
                text = text.replace(mark, f" {mark} ")
            ids.extend(itertools.chain.from_iterable(map(pieces.__getitem__, text.split())))

    def _add_words(self, words: list[str], ids: list[int], continues: list[int]) -> None:
        joined, starts = _joined_words(words)
        position = 0
        for sentence in split_sentences(joined):
            position = joined.index(sentence, position)
            encoding = self._tokenizer.encode(sentence)
            last_word = -1
            for i, (start, _) in zip(encoding.token_ids[1:-1], encoding.offsets[1:-1], strict=True):
                word = bisect.bisect_right(starts, position + start)
                ids.append(i)
                continues.append(int(word == last_word))
                last_word = word
            ids.append(_END)
            continues.append(0)
            position += len(sentence)


_END = -1  # of a sentence, among ids
_END_MARK = "\x01"  # the same among words: plain text holds no control characters


class _Pieces(dict[str, list[int]]):
    """A word's ids; filled as words are met."""

    def __init__(self, tokenizer: WordPiece):
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, word: str) -> list[int]:
        ids = [_END] if word == _END_MARK else cast(list[int], self._tokenizer(word))
        self[word] = ids
        return ids


def _is_plain(text: str) -> bool:
    """Whether case and punctuation are all there is to it: BERT's and Python's are the same."""
    return text.isascii() and text.isprintable()


def _joined_words(words: list[str]) -> tuple[str, list[int]]:
    """The text without spaces beside ideographs, and where in it the words start."""
    parts: list[str] = []
    starts = []
    length = 0
    for word in filter(None, map(str.strip, words)):  # segmenters give spaces, too
        if parts and not (_CJK.match(parts[-1][-1]) or _CJK.match(word[0])):
            parts.append(" ")
            length += 1
        starts.append(length)
        parts.append(word)
        length += len(word)
    return "".join(parts), starts
