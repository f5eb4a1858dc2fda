"""Text in, answers out: fill masks, classify, tag, answer questions, embed.

Each function takes a preset and one text, or a list of them; one text gives one result and a
list a list. A text is str or UTF-8 bytes (invalid bytes are left out).

A result depends on its text alone, and not on what else is in the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_bert.answers import (
    ANSWER_LENGTH,
    Answer,
    Classification,
    Filling,
    MultiLabel,
    Reading,
    Tagging,
    class_names,
    classification,
    filling,
    reading,
    span_scores,
    word_tags,
)
from keras_bert.checkpoints import Preset
from keras_bert.errors import InputError
from keras_bert.layers.crf import SKIPPED, viterbi
from keras_bert.predictions import (
    MASKS,
    SHORTEST,
    Row,
    as_columns,
    as_text,
    as_texts,
    predictions,
)
from keras_bert.text_logits import choice_logits, text_logits
from keras_bert.tokenizers import WordPiece
from keras_bert.windows import Words, given_words, question_rows, text_words, word_windows

CHAINS = 64  # texts whose best paths are found at once
# A task's model -> the function that reads its head.
FUNCTIONS = {
    "pretraining": "fill_mask",
    "masked_lm": "fill_mask",
    "text_classifier": "classify",
    "multiple_choice": "classify",
    "token_classifier": "tag",
    "span_classifier": "answer",
}


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
    tokenizer, longest = preset.tokenizer, preset.max_sequence_length
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
) -> Classification | MultiLabel | list[Classification | MultiLabel]:
    """Classifies texts or pairs of texts, or says which of several texts goes with one.

    The preset's settings say how: what is longer than `max_sequence_length` is cut from its end,
    or as `truncate` and `window_stride` have it (see `text_logits`); of a pair, the longer text
    is cut first, and a `symmetric` one is read in both orders.

    Args:
        preset: With a model of `tasks.text_classifier` or `tasks.multiple_choice`.
        texts: A text or a list of them.
        pairs: The second texts: one for one text, or a list of the same length. Of multiple
            choice, the choices: a list for one text, or a list of lists, all as long.

    Returns:
        A `Classification` for each text. Classes without names, and choices, are called "0",
        "1", ... Where the preset's settings say `multi_label`, it's a `MultiLabel`: the
        probabilities are independent of each other, `labels` are those of at least the setting
        `threshold` (0.5), and `label` is but the likeliest. A model with one output is a
        regression: `score` is its value, `label` is None and `scores` is empty.

    Raises:
        InputError: The preset has another head.
        TypeError: A text is neither str nor bytes.
        ValueError: `texts` and `pairs` don't match.
    """
    if preset.model.name == "multiple_choice":
        if pairs is None:
            raise ValueError("`pairs` must hold the choices: a list for one text, or of lists.")
        texts, is_single = as_texts(texts, "texts")
        choices = [as_texts(own, "pairs")[0] for own in ([pairs] if is_single else pairs)]
        results = [classification(x, (), False) for x in choice_logits(preset, texts, choices)]
        return results[0] if is_single else results
    _check_head(preset, "classify")
    if pairs is None:
        texts, is_single = as_texts(texts, "texts")
    else:
        texts, pairs, is_single = as_columns(texts, pairs, "texts", "pairs")
    how = preset.settings.get("multi_label", False), preset.settings.get("threshold", 0.5)
    results = [
        classification(row, preset.labels, *how) for row in text_logits(preset, texts, pairs)
    ]
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
        finds nothing (an empty one, say) is tagged `O`, or, where the labels have no such tag,
        as the word before it is.

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
    texts = [_words(preset.tokenizer, x, f"row {row}") for row, x in enumerate(items)]
    names = class_names(preset.labels, preset.model.output["labels"].shape[-1])
    results = []
    for text, classes in zip(texts, word_classes(word_logits(preset, texts)), strict=True):
        tags = word_tags(classes, text.firsts, names)
        results.append(Tagging(text.words, tuple(tags), text.starts, text.ends))
    return results[0] if is_single else results


def word_logits(preset: Preset, texts: Sequence[Words]) -> list[np.ndarray]:
    """What `tag` chooses from: for each text float32 (W', C), of its words that have a piece.

    Of a model with a CRF it's (W', C + 1, C).
    """
    _check_head(preset, "tag")
    tokenizer = preset.tokenizer
    rows, places = [], []  # a place: the text's number and the window
    for number, text in enumerate(texts):
        for window in word_windows(len(text.ids), preset.max_sequence_length):
            shown = text.ids[window.start : window.stop]
            token_ids = [tokenizer.cls_id, *shown, tokenizer.sep_id]
            rows.append(Row(token_ids, [0] * len(token_ids)))
            places.append((number, window))

    shape = preset.model.output["labels"].shape[2:]
    logits = [np.zeros((len(text.ids), *shape), np.float32) for text in texts]  # of every piece
    for row, outputs in _predict(preset, ["labels"], rows):
        number, window = places[row]
        logits[number][window.owned] = outputs["labels"][1 + window.owned - window.start]
    return [
        each[[first for first in text.firsts if first >= 0]]
        for each, text in zip(logits, texts, strict=True)
    ]


def word_classes(logits: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The classes of each text's words, int (W',): the likeliest, by a CRF the likeliest together.

    Args:
        logits: From `word_logits`.
    """
    if not logits or logits[0].ndim == 2:
        return [each.argmax(axis=-1) for each in logits]
    classes: list[np.ndarray] = []
    for first in range(0, len(logits), CHAINS):
        texts = logits[first : first + CHAINS]
        longest = -(-max(1, *map(len, texts)) // SHORTEST) * SHORTEST
        potentials = np.zeros((len(texts), longest, *texts[0].shape[1:]), np.float32)
        marks = np.full((len(texts), longest), SKIPPED, np.int32)
        for i, each in enumerate(texts):
            potentials[i, : len(each)] = each
            marks[i, : len(each)] = 0
        paths = ops.convert_to_numpy(viterbi(potentials, marks))
        classes += [path[: len(each)] for path, each in zip(paths, texts, strict=True)]
    return classes


def _words(tokenizer: WordPiece, item: Any, where: str) -> Words:
    if not isinstance(item, (list, tuple, np.ndarray)):
        return text_words(tokenizer, as_text(item, "texts_or_words", where))
    words = [as_text(word, "texts_or_words", f"{where}, word {i}") for i, word in enumerate(item)]
    return given_words(tokenizer, words)


def answer(preset: Preset, questions: Any, contexts: Any) -> Answer | list[Answer]:
    """Finds the answer to a question in a context.

    A context too long for the model is read in windows that begin every 128 tokens (or half a
    window, where that's less), and a span counts in the window in which its start has the most
    context. Spans are compared by the sum of their two logits. They're of at most 30 tokens, the
    bound of the original code: answers are short, and without it a likely start and a likely end
    that don't belong together would make an answer of whole sentences. A question is cut at 64
    tokens.

    Args:
        preset: With a model of `tasks.span_classifier`. Where its settings have a
            `no_answer_threshold`, the answer is "" if the logits of [CLS] (the least of all
            windows) exceed those of the best span by more than that; else there's always one.
            `stride` and `max_answer_length` in its settings replace 128 and 30.
        questions: A text or a list of them.
        contexts: One for one question, or a list of the same length.

    Returns:
        An `Answer` for each question, cut from the context as it was given. `score` is its
        probability among all spans, and "no answer" if that's a choice. "" is (0, 0), and has
        the score 0 where the context holds no word.

    Raises:
        InputError: The preset has another head; a question leaves no room for its context.
        TypeError: A text is neither str nor bytes.
        ValueError: `questions` and `contexts` don't match.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), sections 4.2 and 4.3.
    """
    questions, contexts, is_single = as_columns(questions, contexts, "questions", "contexts")
    threshold = preset.settings.get("no_answer_threshold")
    results = [each.answer(threshold) for each in readings(preset, questions, contexts)]
    return results[0] if is_single else results


def readings(
    preset: Preset, questions: Sequence[str], contexts: Sequence[str], count: int = 1
) -> list[Reading]:
    """What `answer` chooses from: for each question its `count` best spans and the null odds."""
    _check_head(preset, "answer")
    longest, stride = preset.max_sequence_length, preset.settings.get("stride")
    answer_length = preset.settings.get("max_answer_length", ANSWER_LENGTH)
    encoded = {context: preset.tokenizer.encode(context) for context in set(contexts)}
    rows, places = [], []  # a place: the question's number, where the context is, the window
    for number, (question, context) in enumerate(zip(questions, contexts, strict=True)):
        shown = encoded[context].token_ids[1:-1]
        for row in question_rows(
            preset.tokenizer, question, shown, longest, stride, f"row {number}"
        ):
            rows.append(Row(row.token_ids, row.segment_ids))
            places.append((number, row.offset, row.window))

    # Row p, column k: the score of the span from token p to token p + k of the context.
    encodings = [encoded[context] for context in contexts]
    spans = [np.full((len(e.token_ids) - 2, answer_length), -np.inf) for e in encodings]
    nothing = [np.inf] * len(spans)
    for slot, outputs in _predict(preset, ["start", "end"], rows):
        number, offset, window = places[slot]
        starts, ends = (outputs[name].astype(np.float64) for name in ("start", "end"))
        nothing[number] = min(nothing[number], starts[0] + ends[0])
        at = slice(offset, offset + window.stop - window.start)
        scores = span_scores(starts[at], ends[at], answer_length)
        spans[number][window.owned] = scores[window.owned - window.start]
    return [
        reading(context, encoding.offsets[1:-1], span, none, count)
        for context, encoding, span, none in zip(contexts, encodings, spans, nothing, strict=True)
    ]


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
    longest, pad_id = preset.max_sequence_length, preset.tokenizer.pad_id
    vectors = np.zeros((len(rows), preset.config.hidden_dim * len(names)), np.float32)
    for row, states in predictions(encoder, outputs, rows, longest, pad_id):
        length = len(rows[row].token_ids)
        x = np.concatenate([states[name][:length] for name in names], axis=-1)
        vectors[row] = x[0] if pooling == "cls" else getattr(x, pooling)(axis=0)
    if normalize:
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
        vectors /= np.maximum(lengths, np.finfo(np.float32).tiny)
    return vectors[0] if is_single else vectors


def _row(preset: Preset, text: str) -> Row:
    encoding = preset.tokenizer.encode(text, max_length=preset.max_sequence_length)
    return Row(encoding.token_ids, encoding.segment_ids)


def _predict(
    preset: Preset, names: list[str], rows: list[Row]
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    outputs = {name: preset.model.output[name] for name in names}
    return predictions(
        preset.model, outputs, rows, preset.max_sequence_length, preset.tokenizer.pad_id
    )


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
