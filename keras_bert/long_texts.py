"""Texts longer than the model: which of their tokens are read, or in which windows."""

from __future__ import annotations

from typing import NamedTuple, cast

from keras_bert.tokenizers import WordPiece

TRUNCATIONS = ("head", "tail", "head+tail")


class Sequence(NamedTuple):
    """What the model reads, [CLS] and [SEP] included."""

    token_ids: list[int]
    segment_ids: list[int]


def encode_text(
    tokenizer: WordPiece, text: str, max_length: int, truncate: str = "head", stride: int = 0
) -> list[Sequence]:
    """The sequence that stands for a text, or, with a stride, one for each of its windows.

    Args:
        tokenizer: Of the model.
        text: Any.
        max_length: Tokens of a sequence.
        truncate: Which tokens of a longer text are kept: its "head", its "tail", or
            "head+tail": a quarter from its start, the rest from its end.
        stride: Tokens from the start of a window to that of the next, at most those of a window,
            so that none is skipped; the last ends with the text. 0: no windows.

    References:
        - [Sun et al., 2019](https://arxiv.org/abs/1905.05583), section 5.3.1: 128 tokens of the
          head and 382 of the tail did best.
    """
    if truncate not in TRUNCATIONS:
        raise ValueError(
            f"`truncate` must be one of {', '.join(TRUNCATIONS)}. Received: truncate={truncate!r}."
        )
    ids = cast(list[int], tokenizer(text))
    room = max_length - 2
    if stride and len(ids) > room:
        starts = [*range(0, len(ids) - room, min(stride, room)), len(ids) - room]
        parts = [ids[start : start + room] for start in starts]
    elif truncate == "head" or len(ids) <= room:
        parts = [ids[:room]]
    else:
        head = room // 4 if truncate == "head+tail" else 0
        parts = [ids[:head] + ids[len(ids) - room + head :]]
    return [
        Sequence([tokenizer.cls_id, *part, tokenizer.sep_id], [0] * (len(part) + 2))
        for part in parts
    ]


def encode_pair(tokenizer: WordPiece, text: str, pair: str, max_length: int) -> Sequence:
    """The sequence of a pair; of the longer text, tokens are cut from the end."""
    encoding = tokenizer.encode(text, pair, max_length)
    return Sequence(encoding.token_ids, encoding.segment_ids)
