"""A classifier's logits for texts and pairs, as its preset's settings say they're read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from keras_bert.checkpoints import Preset
from keras_bert.long_texts import encode_pair, encode_text
from keras_bert.predictions import Row, predictions


def text_logits(
    preset: Preset, texts: Sequence[str], pairs: Sequence[str] | None = None
) -> np.ndarray:
    """Logits of `tasks.text_classifier`: float32 (N, C).

    Settings of the preset that are honoured: `max_sequence_length`; `truncate` and
    `window_stride`, as for `long_texts.encode_text`: a text's logits are the mean over its
    windows; `symmetric`: a pair's are the mean over both orders.

    Args:
        preset: With a model of `tasks.text_classifier`.
        texts: Texts, or the first ones of pairs.
        pairs: The second ones, as many.
    """
    settings, tokenizer = preset.settings, preset.tokenizer
    longest = preset.max_sequence_length
    truncate, stride = settings.get("truncate", "head"), settings.get("window_stride", 0)
    rows: list[Row] = []
    owners: list[int] = []  # the text that a row is of
    for number, text in enumerate(texts):
        if pairs is None:
            sequences = encode_text(tokenizer, text, longest, truncate, stride)
        else:
            sequences = [encode_pair(tokenizer, text, pairs[number], longest)]
            if settings.get("symmetric"):
                sequences.append(encode_pair(tokenizer, pairs[number], text, longest))
        rows += [Row(*sequence) for sequence in sequences]
        owners += [number] * len(sequences)

    outputs = {"label": preset.model.output["label"]}
    logits = np.zeros((len(rows), outputs["label"].shape[-1]), np.float32)
    for row, found in predictions(preset.model, outputs, rows, longest, tokenizer.pad_id):
        logits[row] = found["label"]
    if len(rows) == len(texts):
        return logits
    sums = np.zeros((len(texts), logits.shape[-1]), np.float64)
    np.add.at(sums, owners, logits)
    return (sums / np.bincount(owners)[:, None]).astype(np.float32)


def choice_logits(
    preset: Preset, texts: Sequence[str], choices: Sequence[Sequence[str]]
) -> np.ndarray:
    """Logits of `tasks.multiple_choice`: float32 (N, K).

    Each choice is scored on its own, as a pair with its text.

    Args:
        preset: With a model of `tasks.multiple_choice`.
        texts: N texts.
        choices: K choices for each.

    Raises:
        ValueError: the texts have different numbers of choices, or another number of lists.
    """
    counts = sorted({len(own) for own in choices})
    if len(texts) != len(choices) or len(counts) > 1 or counts[:1] == [0]:
        raise ValueError(
            "`choices` must have a list for each text, all as long. "
            f"Received: {len(choices)} lists of {', '.join(map(str, counts))} for {len(texts)}."
        )
    longest = preset.max_sequence_length
    rows = [
        Row(*encode_pair(preset.tokenizer, text, each, longest))
        for text, own in zip(texts, choices, strict=True)
        for each in own
    ]
    head = preset.model.get_layer("label")
    name = f"choice_score_{id(head)}"  # the encoder may have other heads, and their forms
    score = head(preset.encoder.output["pooled_output"])
    logits = np.zeros(len(rows), np.float32)
    found = predictions(preset.encoder, {name: score}, rows, longest, preset.tokenizer.pad_id)
    for row, outputs in found:
        logits[row] = outputs[name][0]
    return logits.reshape(len(texts), counts[0] if counts else 0)
