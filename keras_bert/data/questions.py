"""Questions on contexts: reading SQuAD's format, and batches of them."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.data.fitting import Shape
from keras_bert.data.packing import pack, per_slot, starts_in_rows
from keras_bert.data.task_batches import Batch, task_batches
from keras_bert.data.text_files import read_text
from keras_bert.errors import InputError
from keras_bert.tokenizers import WordPiece
from keras_bert.windows import QuestionRow, answer_positions, question_rows

# How far an answer may stand from where its file says, in code points, to be put right.
MAX_SHIFT = 3


class TrueAnswer(NamedTuple):
    """A text and where it starts in the context, in code points."""

    text: str
    start: int


class Question(NamedTuple):
    """A question on a context, and its true answers; (): the context holds none; None: unknown."""

    id: str
    question: str
    context: str
    answers: tuple[TrueAnswer, ...] | None


def read_questions(path: str | os.PathLike[str], *, needs_answers: bool = True) -> list[Question]:
    """Reads questions in the JSON of SQuAD 1.1 and 2.0, CMRC 2018, DRCD and XQuAD.

    An answer that doesn't stand where the file says, but once within three code points, is put
    right, and a warning counts and names the questions: leading blanks that were stripped, or
    emoji that were counted twice, shift an answer so. Where there's none, a file is refused.

    Args:
        path: The file.
        needs_answers: Whether to refuse a file whose questions have no field `answers`.

    Raises:
        InputError: a file that isn't there, isn't UTF-8 or JSON, or holds no questions; a field
            that's missing or of another kind; an id that occurs twice; an answer that isn't in
            its context where the file says. The message names the file and the question.
    """
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not JSON, {error.msg}.") from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"{path} isn't in SQuAD's format: {error!s:.200}.") from None
    except RecursionError:
        raise InputError(f"{path} isn't in SQuAD's format: it's nested too deeply.") from None
    questions: dict[str, Question] = {}
    shifted: list[str] = []
    for question in _questions(data, str(path), shifted, needs_answers):
        if question.id in questions:
            raise InputError(f"{path}: the id {question.id!r} occurs twice.")
        questions[question.id] = question
    if not questions:
        raise InputError(f"{path} holds no questions.")
    unknown = [question.id for question in questions.values() if question.answers is None]
    if unknown and len(unknown) < len(questions):
        raise InputError(
            f"{path}, question {unknown[0]}: it has no field 'answers', and others have: give all "
            "questions of a file one or none."
        )
    if shifted:
        warnings.warn(
            f"{path}: {len(shifted)} answers stand up to {MAX_SHIFT} characters from where the "
            f"file says, and were put right: {', '.join(shifted)}.",
            stacklevel=2,
        )
    return list(questions.values())


def _questions(data: Any, path: str, shifted: list[str], needs_answers: bool) -> Iterator[Question]:
    for i, article in enumerate(_field(data, "data", list, path)):
        for j, paragraph in enumerate(_field(article, "paragraphs", list, f"{path}, data[{i}]")):
            where = f"{path}, data[{i}].paragraphs[{j}]"
            context = _field(paragraph, "context", str, where)
            for k, entry in enumerate(_field(paragraph, "qas", list, where)):
                name = _field(entry, "id", (str, int), f"{where}.qas[{k}]")
                at = f"{path}, question {name}"
                question = Question(str(name), _field(entry, "question", str, at), context, None)
                if entry.get("is_impossible") is True:
                    question = question._replace(answers=())
                elif needs_answers or "answers" in entry:
                    answers = _field(entry, "answers", list, at)
                    found = tuple(_true_answer(answer, context, at, shifted) for answer in answers)
                    question = question._replace(answers=found)
                yield question


def _true_answer(answer: Any, context: str, where: str, shifted: list[str]) -> TrueAnswer:
    text, start = _field(answer, "text", str, where), _field(answer, "answer_start", int, where)
    if not text.strip():
        raise InputError(f"{where}: an answer is empty. A question without one has no answers.")
    if start >= 0 and context.startswith(text, start):
        return TrueAnswer(text, start)
    near = range(max(0, start - MAX_SHIFT), start + MAX_SHIFT + 1)
    places = [place for place in near if context.startswith(text, place)]
    if len(places) != 1:
        raise InputError(
            f"{where}: the answer {text[:80]!r} isn't in the context at answer_start={start}, nor "
            f"once within {MAX_SHIFT} characters of it: correct the file. Offsets count code "
            "points from 0."
        )
    shifted.append(where.rpartition("question ")[2])
    return TrueAnswer(text, places[0])


def _field(value: Any, name: str, kind: Any, where: str) -> Any:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        raise InputError(
            f"{where}: expected a field {name!r} as in SQuAD's JSON. Received: {found!r:.80}."
        )
    if isinstance(found, str) and any("\ud800" <= char <= "\udfff" for char in found):
        raise InputError(f"{where}: {name} holds half of a surrogate pair, which is no text.")
    return found


def check_room(
    path: str, questions: Sequence[Question], tokenizer: WordPiece, max_sequence_length: int
) -> None:
    """Raises InputError for the first question that leaves no room for its context."""
    for question in questions:
        where = f"{path}, question {question.id}"
        question_rows(tokenizer, question.question, [], max_sequence_length, where=where)


def answer_tokens(offsets: Sequence[tuple[int, int]], answer: TrueAnswer) -> tuple[int, int] | None:
    """The first and the last token of a context that an answer has a part in; None: it has none.

    Args:
        offsets: (start, end) of each token of the context, in code points.
        answer: With its place there.
    """
    end = answer.start + len(answer.text)
    inside = [i for i, (a, b) in enumerate(offsets) if a < end and answer.start < b]
    return (inside[0], inside[-1]) if inside else None


class _Example(NamedTuple):
    row: QuestionRow
    start: int
    end: int


def squad(
    questions: Sequence[Question],
    tokenizer: WordPiece,
    batch_size: int,
    *,
    max_sequence_length: int = 384,
    stride: int | None = 128,
    layout: str = "padded",
    row_multiple: int = 1,
    seed: int = 0,
    training: bool = True,
) -> tf.data.Dataset:
    """Batches of (inputs, labels, weights) from questions, for `fit` on any backend.

    A row is [CLS] question [SEP] context [SEP]; a long context becomes windows that begin every
    `stride` tokens, each a row of its own. Labels are the positions of the first token of the
    (first) answer and of its last; where the window doesn't hold all of the answer, or there is
    none, both are 0, [CLS].

    Inputs `token_ids`, `segment_ids`, `padding_mask`, int32 (B, T); labels and weights
    `{"start": (B,), "end": (B,)}`, int32 and float32. In the other layouts, rows hold several
    windows each, `sequence_starts` (B, S) says where they begin, and labels and weights are (B, S).

    Args:
        questions: From `read_questions`.
        tokenizer: Of the model.
        batch_size: Windows in a batch, over all replicas; a question mostly is one.
        max_sequence_length: Tokens of the longest row.
        stride: As for `windows.question_rows`.
        layout: As for `task_batches`: "padded", a window a row; "packed" or "one_shape" for a
            model with `layers.SpansApart`.
        row_multiple: What the number of rows must be a multiple of: replicas times micro-batches.
        seed: For the order.
        training: Whether to shuffle.

    Raises:
        InputError: A question leaves no room for its context; no context holds a token.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), sections 4.2 and 4.3.
    """
    examples = list(_examples(questions, tokenizer, max_sequence_length, stride))
    if not examples:
        raise InputError("No question has a context that the tokenizer finds anything in.")
    positions = {name: np.array([getattr(x, name) for x in examples]) for name in ("start", "end")}

    def make(numbers: np.ndarray, rows: list[list[int]], shape: Shape) -> Batch:
        ids = [examples[n].row.token_ids for n in numbers]
        inputs = pack(
            ids, [examples[n].row.segment_ids for n in numbers], rows,
            row_length=shape.row_length, num_slots=shape.num_slots, pad_id=tokenizer.pad_id,
        )  # fmt: skip
        labels = {name: x[numbers] for name, x in positions.items()}
        weight = np.ones(len(numbers), np.float32)
        if layout != "padded":
            starts = starts_in_rows(np.array([len(x) for x in ids]), rows)
            slots = shape.num_slots
            labels = {name: per_slot(x + starts, rows, slots) for name, x in labels.items()}
            weight = per_slot(weight, rows, slots)
        else:
            del inputs["sequence_starts"]
            filled = len(rows) - len(numbers)
            labels = {name: np.pad(x, (0, filled)) for name, x in labels.items()}
            weight = np.pad(weight, (0, filled))
        labels = {name: x.astype(np.int32) for name, x in labels.items()}
        return inputs, labels, dict.fromkeys(labels, weight)

    return task_batches(
        make, [len(x.row.token_ids) for x in examples], batch_size, max_sequence_length,
        layout=layout, row_multiple=row_multiple, seed=seed, training=training,
    )  # fmt: skip


def _examples(
    questions: Sequence[Question], tokenizer: WordPiece, longest: int, stride: int | None
) -> Iterator[_Example]:
    encoded = {context: tokenizer.encode(context) for context in {q.context for q in questions}}
    for question in questions:
        encoding = encoded[question.context]
        place = None
        if question.answers:
            place = answer_tokens(encoding.offsets[1:-1], question.answers[0])
        shown = encoding.token_ids[1:-1]
        where = f"question {question.id}"
        for row in question_rows(tokenizer, question.question, shown, longest, stride, where):
            yield _Example(row, *(answer_positions(row, *place) if place else (0, 0)))
