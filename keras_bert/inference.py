"""Text in, answers out: fill masks, classify, tag, answer questions, embed.

Each function takes a preset and one text, or a list of them; one text gives one result and a
list a list. A text is str or UTF-8 bytes (invalid bytes are left out).

A result depends on its text alone, and not on what else is in the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_bert.answers import (
    ANSWER_LENGTH,
    Answer,
    Classification,
    Filling,
    Tagging,
    best_answer,
    class_names,
    classification,
    filling,
    span_scores,
)
from keras_bert.checkpoints import Preset
from keras_bert.errors import InputError
from keras_bert.predictions import (
    MASKS,
    Row,
    Window,
    as_columns,
    as_texts,
    predictions,
    windows,
    words_of,
)

# A task's model -> the function that reads its head.
FUNCTIONS = {
    "pretraining": "fill_mask",
    "masked_lm": "fill_mask",
    "text_classifier": "classify",
    "token_classifier": "tag",
    "span_classifier": "answer",
}
# The numbers of the original code for SQuAD, in tokens.
QUESTION_LENGTH, STRIDE = 64, 128


def fill_mask(preset: Preset, texts: Any, top_k: int = 5) -> list[Filling] | list[list[Filling]]:
    """Finds the likeliest tokens for every `[MASK]` in a text.

    Here, and here alone, `[MASK]` and the other special tokens are read as tokens. Several masks
    of a text are filled independently: each sees the others as masks, and the best tokens of
    each needn't go together.

    Args:
        preset: With a model of `tasks.masked_lm` or `tasks.pretraining`.
        texts: A text or a list of them.
        top_k: How many tokens to name for a mask.

    Returns:
        For each text a list with one `Filling` for each mask. The probabilities are among the
        tokens of the vocabulary.

    Raises:
        InputError: The preset has another head; a text has no [MASK], or one that lies beyond
            the preset's `max_sequence_length`.
        TypeError: A text is neither str nor bytes.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.1.
    """
    _check_head(preset, "fill_mask")
    tokenizer = preset.tokenizer
    if type(top_k) is not int or not 1 <= top_k <= tokenizer.vocabulary_size:
        raise ValueError(
            f"`top_k` must be from 1 to {tokenizer.vocabulary_size}. Received: top_k={top_k!r}."
        )
    texts, is_single = as_texts(texts, "texts")
    rows, places = [], []  # a place: the text's number and that of the row's first mask
    for number, text in enumerate(texts):
        whole = _masked_row(preset, text, number)
        for first in range(0, len(whole.masks), MASKS):
            rows.append(whole._replace(masks=whole.masks[first : first + MASKS]))
            places.append((number, first))

    results: list[Any] = [[None] * text.count("[MASK]") for text in texts]
    for row, outputs in _predict(preset, ["masked_lm"], rows):
        number, first = places[row]
        logits = outputs["masked_lm"][: len(rows[row].masks)]
        for i, scores in enumerate(logits, start=first):
            results[number][i] = filling(scores, tokenizer.vocabulary, top_k)
    return results[0] if is_single else results


def _masked_row(preset: Preset, text: str, number: int) -> Row:
    tokenizer, longest = preset.tokenizer, _longest(preset)
    encoding = tokenizer.encode(text, max_length=longest, special_tokens=True)
    masks = [i for i, token in enumerate(encoding.token_ids) if token == tokenizer.mask_id]
    if "[MASK]" not in text:
        start = text if len(text) <= 80 else f"{text[:80]}..."
        raise InputError(f"A text must hold a [MASK] to fill. Received: row {number}, {start!r}.")
    if len(masks) < text.count("[MASK]"):
        raise InputError(
            f"Every [MASK] must be among the first {longest} tokens: shorten row {number}, "
            f"{text[:40]!r}..."
        )
    return Row(encoding.token_ids, encoding.segment_ids, masks)


def classify(
    preset: Preset, texts: Any, pairs: Any = None
) -> Classification | list[Classification]:
    """Classifies texts, or pairs of texts.

    What is longer than the preset's `max_sequence_length` is cut from its end; of a pair, the
    longer text is cut first.

    Args:
        preset: With a model of `tasks.text_classifier`.
        texts: A text or a list of them.
        pairs: The second texts: one for one text, or a list of the same length.

    Returns:
        A `Classification` for each text. Classes without names are called "0", "1", ... Where
        the preset's settings say `multi_label`, the probabilities are independent of each other,
        and `label` is but the likeliest of the labels that may hold. A model with one output is
        a regression: `score` is its value, `label` is None and `scores` is empty.

    Raises:
        InputError: The preset has another head.
        TypeError: A text is neither str nor bytes.
        ValueError: `texts` and `pairs` don't match.
    """
    _check_head(preset, "classify")
    if pairs is None:
        texts, is_single = as_texts(texts, "texts")
        rows = [_row(preset, text) for text in texts]
    else:
        texts, pairs, is_single = as_columns(texts, pairs, "texts", "pairs")
        rows = [_row(preset, *columns) for columns in zip(texts, pairs, strict=True)]

    multi_label = bool(preset.settings.get("multi_label"))
    results: list[Any] = [None] * len(rows)
    for row, outputs in _predict(preset, ["label"], rows):
        results[row] = classification(outputs["label"], preset.labels, multi_label)
    return results[0] if is_single else results


def tag(preset: Preset, texts_or_words: Any) -> Tagging | list[Tagging]:
    """Tags every word of a text.

    A word's tag is that of its first piece. A text too long for the model is read in windows
    that overlap by half, and a word is tagged where it has the most context on both sides.

    Args:
        preset: With a model of `tasks.token_classifier`.
        texts_or_words: A text, or a list whose items are texts or lists of words. A list of
            strings is a list of texts: words that are split already go in as `[words]`.

    Returns:
        A `Tagging` for each text. The words of a text are those of the tokenizer: split at
        spaces, at punctuation and around CJK ideographs. Words that came split keep their
        number, and `starts` and `ends` refer to `" ".join(words)`; one in which the tokenizer
        finds nothing (an empty one, say) is shown to the model as [UNK].

    Raises:
        InputError: The preset has another head.
        TypeError: A text or a word is neither str nor bytes.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 5.3.
    """
    _check_head(preset, "tag")
    is_single = isinstance(texts_or_words, (str, bytes))
    if not is_single and not isinstance(texts_or_words, (list, tuple, np.ndarray)):
        raise TypeError(
            "`texts_or_words` must be a text, or a list of texts and lists of words. "
            f"Received: {texts_or_words!r}."
        )
    items = [texts_or_words] if is_single else texts_or_words
    tokenizer, size = preset.tokenizer, _longest(preset) - 2
    texts = [words_of(tokenizer, item, f"row {number}") for number, item in enumerate(items)]
    rows, places = [], []  # a place: the text's number and the window
    for number, text in enumerate(texts):
        for window in windows(len(text.ids), size, max(1, size // 2)):
            shown = text.ids[window.start : window.stop]
            token_ids = [tokenizer.cls_id, *shown, tokenizer.sep_id]
            rows.append(Row(token_ids, [0] * len(token_ids)))
            places.append((number, window))

    classes = [np.zeros(len(text.ids), np.int64) for text in texts]  # of every piece
    for row, outputs in _predict(preset, ["labels"], rows):
        number, window = places[row]
        found = outputs["labels"].argmax(axis=-1)
        classes[number][window.owned] = found[1 + window.owned - window.start]
    names = class_names(preset.labels, preset.model.output["labels"].shape[-1])
    results = []
    for text, found in zip(texts, classes, strict=True):
        tags = tuple(names[i] for i in found[text.firsts])
        results.append(Tagging(text.words, tags, text.starts, text.ends))
    return results[0] if is_single else results


def answer(preset: Preset, questions: Any, contexts: Any) -> Answer | list[Answer]:
    """Finds the answer to a question in a context.

    A context too long for the model is read in windows that begin every 128 tokens (or half a
    window, where that's less), and a span counts in the window in which its start has the most
    context. Spans are compared by the sum of their two logits. They're of at most 30 tokens, the
    bound of the original code: answers are short, and without it a likely start and a likely end
    that don't belong together would make an answer of whole sentences. A question is cut at 64
    tokens, or at half the room.

    Args:
        preset: With a model of `tasks.span_classifier`. Where its settings have a
            `no_answer_threshold`, the answer is "" if the logits of [CLS] (the least of all
            windows) exceed those of the best span by more than that; else there's always one.
        questions: A text or a list of them.
        contexts: One for one question, or a list of the same length.

    Returns:
        An `Answer` for each question, cut from the context as it was given. `score` is its
        probability among all spans, and "no answer" if that's a choice. "" is (0, 0), and has
        the score 0 where the context holds no word.

    Raises:
        InputError: The preset has another head.
        TypeError: A text is neither str nor bytes.
        ValueError: `questions` and `contexts` don't match.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), sections 4.2 and 4.3.
    """
    _check_head(preset, "answer")
    questions, contexts, is_single = as_columns(questions, contexts, "questions", "contexts")
    encodings = [preset.tokenizer.encode(context) for context in contexts]
    rows, places = [], []  # a place: the question's number, where the context is, the window
    for number, (question, encoding) in enumerate(zip(questions, encodings, strict=True)):
        for row, offset, window in _question_rows(preset, question, encoding.token_ids[1:-1]):
            rows.append(row)
            places.append((number, offset, window))

    # Row p, column k: the score of the span from token p to token p + k of the context.
    spans = [np.full((len(e.token_ids) - 2, ANSWER_LENGTH), -np.inf) for e in encodings]
    nothing = [np.inf] * len(spans)
    for slot, outputs in _predict(preset, ["start", "end"], rows):
        number, offset, window = places[slot]
        starts, ends = (outputs[name].astype(np.float64) for name in ("start", "end"))
        nothing[number] = min(nothing[number], starts[0] + ends[0])
        shown = slice(offset, offset + window.stop - window.start)
        scores = span_scores(starts[shown], ends[shown], ANSWER_LENGTH)
        spans[number][window.owned] = scores[window.owned - window.start]
    threshold = preset.settings.get("no_answer_threshold")
    results = [
        best_answer(contexts[i], encodings[i].offsets[1:-1], spans[i], nothing[i], threshold)
        for i in range(len(contexts))
    ]
    return results[0] if is_single else results


def _question_rows(
    preset: Preset, question: str, context: list[int]
) -> Iterator[tuple[Row, int, Window]]:
    """For each window on the context its row, the window's place in that, and the window."""
    tokenizer, room = preset.tokenizer, _longest(preset) - 3
    if room < 2:
        raise InputError(
            "The preset's max_sequence_length must be at least 5 to hold a question and a context. "
            f"Received: max_sequence_length={room + 3}."
        )
    asked = [tokenizer.cls_id, *tokenizer(question)[: min(QUESTION_LENGTH, room // 2)]]
    asked.append(tokenizer.sep_id)
    size = room + 2 - len(asked)
    for window in windows(len(context), size, min(STRIDE, max(1, size // 2))):
        shown = [*context[window.start : window.stop], tokenizer.sep_id]
        row = Row(asked + shown, [0] * len(asked) + [1] * len(shown))
        yield row, len(asked), window


def embed(
    preset: Preset,
    texts: Any,
    pooling: str | None = None,
    layers: Sequence[int] = (-1,),
    normalize: bool | None = None,
) -> np.ndarray:
    """Makes a vector of each text; of whichever head the preset has, its encoder is used.

    Texts are cut at the preset's `max_sequence_length`. [CLS] and [SEP] are part of a text, as
    in Sentence-BERT; padding is not.

    Args:
        preset: Any.
        texts: A text or a list of them.
        pooling: "mean" or "max" over the tokens, or "cls", the vector at [CLS]; None: the
            preset's setting, or else "mean".
        layers: Which hidden states to pool, joined in this order: 0 is that of the embeddings, i
            that after the i-th block, -1 the last.
        normalize: Divide each (joined) vector by its length, so that a product of two is their
            cosine; None: the preset's setting, or else True.

    Returns:
        float32 (B, D * len(layers)), or (D * len(layers),) for one text.

    Raises:
        TypeError: A text is neither str nor bytes.
        ValueError: There's no such pooling, or no such layer.

    References:
        - [Reimers and Gurevych, 2019](https://arxiv.org/abs/1908.10084), section 3.
    """
    if pooling is None:
        pooling = preset.settings.get("pooling", "mean")
    if normalize is None:
        normalize = preset.settings.get("normalize", True)
    if pooling not in ("mean", "max", "cls"):
        raise ValueError(f"`pooling` must be mean, max or cls. Received: pooling={pooling!r}.")
    encoder, count = preset.encoder, preset.config.num_layers
    known = range(-count - 1, count + 1)
    if isinstance(layers, int) or not len(layers) or not all(i in known for i in layers):
        raise ValueError(
            f"`layers` must hold numbers from {known[0]} to {known[-1]}. Received: layers={layers}."
        )
    texts, is_single = as_texts(texts, "texts")
    rows = [_row(preset, text) for text in texts]
    names = ["embedding_norm", *(f"block_{i}" for i in range(count))]
    names = [names[i] for i in layers]
    outputs = {name: encoder.get_layer(name).output for name in names}
    longest, pad_id = _longest(preset), preset.tokenizer.pad_id
    vectors = np.zeros((len(rows), preset.config.hidden_dim * len(names)), np.float32)
    for row, states in predictions(encoder, outputs, rows, longest, pad_id):
        length = len(rows[row].token_ids)
        x = np.concatenate([states[name][:length] for name in names], axis=-1)
        vectors[row] = x[0] if pooling == "cls" else getattr(x, pooling)(axis=0)
    if normalize:
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
        vectors /= np.maximum(lengths, np.finfo(np.float32).tiny)
    return vectors[0] if is_single else vectors


def _row(preset: Preset, text: str, pair: str | None = None) -> Row:
    encoding = preset.tokenizer.encode(text, pair, max_length=_longest(preset))
    return Row(encoding.token_ids, encoding.segment_ids)


def _predict(
    preset: Preset, names: list[str], rows: list[Row]
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    outputs = {name: preset.model.output[name] for name in names}
    return predictions(preset.model, outputs, rows, _longest(preset), preset.tokenizer.pad_id)


def _longest(preset: Preset) -> int:
    return preset.settings.get("max_sequence_length", preset.config.max_sequence_length)


def _check_head(preset: Preset, function: str) -> None:
    task = "encoder" if preset.model is preset.encoder else preset.model.name
    if FUNCTIONS.get(task) == function:
        return
    wanted = " or ".join(name for name, other in FUNCTIONS.items() if other == function)
    advice = f"use {FUNCTIONS[task]}" if task in FUNCTIONS else "only embed can use it"
    raise InputError(
        f"{function} needs a preset with the model {wanted}. Received: one with the model {task}; "
        f"{advice}."
    )
