"""What a folder of pretraining examples holds, in numbers and in print."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_bert.data import batches, records
from keras_bert.data.creation import Made
from keras_bert.report import Curves, Examples, Guess, Table, write_report
from keras_bert.tokenizers import WordPiece

PRINTED_EXAMPLES = 20
PRINTED_TOKENS = 60  # of an example, to be read at a glance
MASKED_BATCHES = 20  # of 100 examples, from which the shares of masks are taken


def shares(counts: Mapping[str, int], max_sequence_length: int) -> dict[str, float]:
    """The ratios that tell whether data are good."""
    examples, tokens = max(1, counts["examples"]), max(1, counts["tokens"])
    return {
        "random_next_share": counts["random_next"] / examples,
        "unknown_share": counts["unknown_tokens"] / tokens,
        "lost_share": counts["tokens_lost"] / tokens,
        "fill": counts["example_tokens"] / (examples * max_sequence_length),
        "tokens_per_sentence": tokens / max(1, counts["sentences"]),
        "sentences_per_document": counts["sentences"] / max(1, counts["documents"]),
    }


def length_histogram(counts: Mapping[str, int], num_bins: int = 32) -> list[tuple[float, float]]:
    """(length, share of the examples up to it and beyond the one before)."""
    lengths = {
        int(name.removeprefix("length ")): count
        for name, count in counts.items()
        if name.startswith("length ")
    }
    longest, total = max(lengths, default=1), max(1, sum(lengths.values()))
    width = -(-longest // num_bins)
    bins: collections.Counter[int] = collections.Counter()
    for length, count in lengths.items():
        bins[-(-length // width) * width] += count
    return [(float(end), bins[end] / total) for end in range(width, longest + width, width)]


def masked_examples(
    folder: pathlib.Path, tokenizer: WordPiece
) -> tuple[dict[str, float], list[int], list[list[Guess]]]:
    """Looks at the first examples as the model sees them.

    Returns:
        The shares of the tokens that are asked for, and of these as what they're shown; of the
        first examples, next_sentence; and their tokens: (true token, "text" or of those asked for
        "mask", "kept" or "random", the true token, 1).
    """
    mask_id = records.read_manifest(folder)["tokenizer"]["mask_id"]
    seen: collections.Counter[str] = collections.Counter()
    labels: list[int] = []
    printed: list[list[Guess]] = []
    for batch in batches.pretraining(folder, 100, training=False).take(MASKED_BATCHES):
        inputs, outputs, weights = ({k: x.numpy() for k, x in part.items()} for part in batch)
        asked = weights["masked_lm"] > 0
        shown, true = inputs["token_ids"], inputs["token_ids"].copy()
        rows, slots = np.nonzero(asked)
        positions = inputs["mask_positions"][rows, slots]
        true[rows, positions] = outputs["masked_lm"][rows, slots]
        kinds = np.full(shown.shape, "text", dtype="U6")
        kinds[rows, positions] = np.where(
            shown[rows, positions] == mask_id,
            "mask",
            np.where(shown == true, "kept", "random")[rows, positions],
        )
        real = inputs["padding_mask"] > 0
        seen.update(kinds[real].tolist())
        for row in range(min(len(true), PRINTED_EXAMPLES - len(printed))):
            labels.append(int(outputs["next_sentence"][row]))
            tokens = [tokenizer.vocabulary[i] for i in true[row][real[row]][:PRINTED_TOKENS]]
            printed.append([(x, str(k), x, 1.0) for x, k in zip(tokens, kinds[row], strict=False)])
    asked_for = max(1, seen.total() - seen["text"])
    of_masks = {f"shown as {kind}": seen[kind] / asked_for for kind in ("mask", "kept", "random")}
    return {"asked for": asked_for / max(1, seen.total())} | of_masks, labels, printed


def write_page(
    folder: pathlib.Path,
    made: Mapping[str, Made],
    metrics: Mapping[str, Any],
    tokenizer: WordPiece,
    subtitle: str,
) -> list[str]:
    """Writes `report.html` into a complete folder.

    Args:
        folder: Where the shards are.
        made: By split, with the counts of lengths.
        metrics: Counts and shares of the data to train on, and of those held out under `dev`.
        tokenizer: That of the data.
        subtitle: Such as the command.

    Returns:
        A line for each printed example.
    """
    masks, labels, printed = masked_examples(folder, tokenizer)
    histograms = {split: length_histogram(made[split].counts) for split in made}
    lines = [
        f"next_sentence {label}: "
        + " ".join(x if kind == "text" else f"{kind}({x})" for x, kind, _, _ in row)
        for label, row in zip(labels, printed, strict=True)
    ]
    write_report(
        folder / "report.html",
        "Pretraining data",
        [
            Table("Counts and shares", ("", *sorted(made, reverse=True)), rows_of(metrics)),
            Table("Masks of the first 2,000 examples", ("", "share"), list(masks.items())),
            Curves("Lengths", histograms, "tokens, special ones included", "share of examples"),
            Examples(
                f"{len(printed)} examples",
                printed,
                "Their first 60 tokens. Marked: what the model is asked for, and as what it's "
                "shown if not as [MASK]. next_sentence, in turn: " + ", ".join(map(str, labels)),
            ),
        ],
        subtitle,
    )
    return lines


def rows_of(metrics: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """(name, of the data to train on, of those held out) of what was counted."""
    columns = [metrics, metrics["dev"]] if "dev" in metrics else [metrics]
    names = [name for name in metrics if name not in ("dev", "seconds")]
    return [(name.replace("_", " "), *(c.get(name, 0) for c in columns)) for name in names]
