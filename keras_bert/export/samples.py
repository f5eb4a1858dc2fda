"""Requests of all kinds: to check an export by, to warm a server up, to show how it's asked."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_bert.checkpoints import Preset
from keras_bert.export.expected import expected
from keras_bert.export.signatures import IDS, TEXT_FORMS, Signature
from keras_bert.tokenizers import Encoding

TEXTS = (
    "The train leaves at half past nine from platform two.",
    "",
    "火车九点半从二号站台出发，请提前十分钟到达。",
    "Ünïcödé, naïve café – “quotes”, ﬁne ½ and ΣΊΣΥΦΟΣ!",
    "No\u200bspace, a tab\tand emoji \U0001f600\U0001f680; [SEP] is text.",
    "e\u0301\u0323 가나다 한국어 supercalifragilisticexpialidocious " + "x" * 300,
    "A long text goes on. " * 60,
    "word " * 3 + "很长的文字，" * 100,
)
# Second texts, or questions; as short as a model of 16 tokens needs them.
OTHERS = ("When does it go?", "什么时候？", "", "Why?", "", "Who?", "How?", "Where?")

# Tasks whose answer on a text that fits is that of its ids.
READ_WHOLE = ("masked_lm", "pretraining", "sentence_embedder", "text_classifier")

Functions = dict[str, tf.types.experimental.ConcreteFunction]
Request = tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]  # signature, inputs, outputs


def sample_requests(
    preset: Preset,
    task: str,
    signatures: dict[str, Signature],
    functions: Functions,
    by_functions: bool = False,
) -> list[Request]:
    """For each signature a request of one row, then one of all kinds of rows.

    The outputs are those of `inference`, and for ids that are those of a whole text, the text's.
    Tags and places of ids have no text that says the same: they're the function's own. So are all
    outputs with `by_functions`.
    """
    requests = []
    for name, function in functions.items():
        names = set(signatures[name].inputs)
        for rows in (1, len(TEXTS)):
            if "token_ids" in names:
                inputs, texts = id_inputs(preset, task, rows, names)
                is_read_whole = task in READ_WHOLE and not preset.settings.get("symmetric")
            else:
                inputs = text_inputs(preset, task, rows, names)
            if by_functions or ("token_ids" in names and not is_read_whole):
                outputs = _answered(function, inputs)
            elif "token_ids" in names:
                outputs = expected(preset, task, *texts)
            else:
                outputs = expected_of_texts(preset, task, inputs)
            requests.append((name, inputs, outputs))
    return requests


def _answered(
    function: tf.types.experimental.ConcreteFunction, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    outputs = function(**{key: tf.constant(x) for key, x in inputs.items()})
    return {key: x.numpy() for key, x in outputs.items()}


def text_inputs(preset: Preset, task: str, rows: int, names: set[str]) -> dict[str, np.ndarray]:
    """The first texts as the inputs of a signature."""
    texts, others = texts_for(preset, task)
    if "words" in names:
        split = [text.split(" ") for text in texts[:rows]]
        longest = max(map(len, split))
        padded = [[*row, *[""] * (longest - len(row))] for row in split]
        return {"words": np.array(padded, object)}
    first, *second = next(form for form in TEXT_FORMS.values() if set(form) == names)
    if first == "question":
        texts, others = others, texts
    columns = {first: texts} | dict.fromkeys(second, others)
    return {name: np.array(column[:rows], object) for name, column in columns.items()}


def texts_for(preset: Preset, task: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Texts and other texts; for a masked language model with masks, and none that's cut."""
    longest = preset.max_sequence_length
    if task not in ("masked_lm", "pretraining"):
        # Questions that leave room for a context.
        return TEXTS, tuple(x if len(preset.tokenizer(x)) <= longest - 4 else "" for x in OTHERS)
    texts = ("[MASK]", *(f"[MASK] {text} [MASK]" for text in TEXTS))
    fits = [
        text
        for text in texts
        if len(preset.tokenizer.encode(text, special_tokens=True).token_ids) <= longest
    ]
    return tuple(fits), OTHERS


def expected_of_texts(
    preset: Preset, task: str, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The outputs of a signature that takes text."""
    if "words" in inputs:
        # As the signature counts them, without the empty ones at a row's end.
        rows = [list(row) for row in inputs["words"]]
        for row in rows:
            while row and not row[-1]:
                row.pop()
        return expected(preset, task, rows)
    form = next(form for form in TEXT_FORMS.values() if set(form) == inputs.keys())
    return expected(preset, task, *(inputs[name] for name in form))


def id_inputs(
    preset: Preset, task: str, rows: int, names: set[str]
) -> tuple[dict[str, np.ndarray], list[list[str]]]:
    """The first texts that fit as `token_ids` and `segment_ids`, int32 (B, T), and mask or length.

    The second value are the texts, and their other texts where the model reads pairs.
    """
    texts, others = texts_for(preset, task)
    if task == "span_classifier":
        texts, others = others, texts
    has_pair = task == "span_classifier" or preset.settings.get("pair", False)
    special = task in ("masked_lm", "pretraining")
    read: list[tuple[tuple[str, ...], Encoding]] = []
    for text, other in zip(texts, others, strict=False):
        pair = other if has_pair else None
        encoding = preset.tokenizer.encode(text, pair, special_tokens=special)
        if len(encoding.token_ids) <= preset.max_sequence_length and len(read) < rows:
            read.append(((text, other) if has_pair else (text,), encoding))
    length = np.array([len(encoding.token_ids) for _, encoding in read], np.int32)
    inputs = {name: np.zeros((len(read), max(length)), np.int32) for name in IDS}
    inputs["token_ids"][:] = preset.tokenizer.pad_id
    for i, (_, encoding) in enumerate(read):
        inputs["token_ids"][i, : length[i]] = encoding.token_ids
        inputs["segment_ids"][i, : length[i]] = encoding.segment_ids
        inputs["padding_mask"][i, : length[i]] = 1
    inputs["length"] = length
    chosen = [list(column) for column in zip(*(each for each, _ in read), strict=True)]
    return {name: inputs[name] for name in inputs if name in names}, chosen
