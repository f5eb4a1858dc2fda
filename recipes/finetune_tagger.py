r"""Fine-tune BERT to tag words: names, parts of speech, slots (Devlin et al., 2018, section 5.3).

    python recipes/finetune_tagger.py --checkpoint minilm --train-file wnut17/train.conll \
        --dev-file wnut17/dev.conll --learning-rate 5e-5 --output-dir runs/names

Files are columns (CoNLL), CoNLL-U, UNER's iob2 or JSON lines, told apart by what's in them. Where
one of the tags is `O`, tags are entities' and are scored by F1 of whole entities, as seqeval
does by default; else by accuracy. A `--test-file` may hold words alone, to be tagged.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import keras
import numpy as np

import keras_bert
from keras_bert import entities, finetuning, inference, recipe
from keras_bert.answers import word_tags
from keras_bert.data.tagged_words import TaggedSentence, read_tagged_sentences, tagging
from keras_bert.errors import InputError
from keras_bert.evaluation import softmax
from keras_bert.files import write_json, write_text
from keras_bert.layers.crf import CrfLoss
from keras_bert.report import Table
from keras_bert.tokenizer_checks import check_unknown
from keras_bert.windows import given_words


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args(finetuning.Args):
    """Fine-tune BERT to tag words.

    Files are columns (CoNLL: a word a line, its tag in the last column, a blank line between
    sentences), CoNLL-U, UNER's iob2, or JSON lines with the lists `words` and `tags`.
    """

    tag_column: int = 0
    """The column of tags, from 1; 0: the last one, or the usual one of CoNLL-U and iob2."""
    crf: bool = False
    """Choose the tags of a sentence together, by a conditional random field on top."""
    max_sequence_length: int = 128
    """Tokens of a window, [CLS] and [SEP] included; a longer sentence is read in several."""


# Tags without a meaning of their own; entities'; entities' that always begin with B or S.
Scheme = Literal["", "entities", "strict"]


class Tagged(NamedTuple):
    """A sentence's predicted tags and their probabilities; NaN: the word has no piece."""

    tags: list[str]
    probabilities: list[float]


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    args, strategy = finetuning.set_up(args)

    # ---- Data ------------------------------------------------------------------
    files = {"train": args.train_file, "dev": args.dev_file, "test": args.test_file}
    column = args.tag_column or None
    data = {name: read_tagged_sentences(path, column, needs_tags=name != "test")
            for name, path in files.items() if path}  # fmt: skip
    counts = Counter(tag for row in data["train"] for tag in row.tags)
    labels = tuple(sorted(counts))
    if len(labels) < 2:
        raise InputError(f"{args.train_file} holds one tag only, {labels[0]!r}: give at least two.")
    for name, rows in data.items():
        check_tags(files[name], rows, labels)
    scheme = scheme_of(data["train"], labels)
    if args.smoke:
        data = {name: rows[: finetuning.SMOKE_EXAMPLES] for name, rows in data.items()}
    print(f"{len(data['train'])} sentences, {counts.total()} words, {len(labels)} tags:",
          ", ".join(f"{tag} {n}" for tag, n in counts.most_common(20)))  # fmt: skip
    with strategy.scope():
        base = keras_bert.load(args.checkpoint)
    check_unknown(base.tokenizer, [" ".join(row.words) for row in data["train"][:2000]])
    finetuning.check_lengths(args, base)
    if base.model.name == "token_classifier" and set(base.labels) == set(labels):
        labels = base.labels  # in the order of its head, which is kept

    # ---- Model -----------------------------------------------------------------
    def build(args: Args) -> tuple[keras_bert.Preset, keras.Model]:
        encoder = finetuning.start_encoder(args, base)
        model = keras_bert.tasks.token_classifier(encoder, len(labels), crf=args.crf)
        finetuning.keep_head(args, base, model, labels)
        settings = {"max_sequence_length": args.max_sequence_length}
        preset = keras_bert.Preset(base.config, encoder, base.tokenizer, model, labels, settings)
        return preset, model

    def batches(args: Args) -> Any:
        return tagging(
            data["train"],
            base.tokenizer,
            labels,
            args.batch_size,
            max_sequence_length=args.max_sequence_length,
            layout="one_shape" if finetuning.needs_one_shape(args, strategy) else "packed",
            crf=args.crf,
            row_multiple=strategy.num_replicas_in_sync * args.accumulate,
            seed=args.seed,
        )

    # ---- Train -----------------------------------------------------------------
    commonest = counts.most_common(1)[0][0]
    guesses = [Tagged([commonest] * len(row.words), []) for row in data["dev"]]
    metric = "entity_f1" if scheme else "accuracy"
    task = finetuning.Task(
        build=build,
        batches=batches,
        num_examples=len(data["train"]),
        loss=CrfLoss()
        if args.crf
        else keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        score=lambda preset: scores(data["dev"], predict(preset, data["dev"]), scheme),
        metric=metric,
        floor=scores(data["dev"], guesses, scheme)[metric],
    )
    folder = finetuning.start_run(args, batches)
    best, metrics = finetuning.finetune(args, task, strategy, folder)

    # ---- Save ------------------------------------------------------------------
    preset = finetuning.settled(best, strategy, folder)
    predicted = {name: predict(preset, data[name]) for name in data if name != "train"}
    last = "test" if "test" in data else "dev"
    if last == "test" and data["test"][0].tags:
        metrics["test"] = finetuning.rounded(scores(data["test"], predicted["test"], scheme))
    write_json(folder / "metrics.json", metrics)
    finetuning.write_predictions(folder, prediction_rows(data[last], predicted[last]))
    write_columns(folder / "predictions.conll", data[last], predicted[last])
    dev = data["dev"], predicted["dev"]
    sections = [*score_tables(*dev, scheme), errors(*dev)]
    finetuning.write_run_report(folder, "Tagging", best.args, metrics, sections)
    print(f"Report: {folder / 'report.html'}")
    return metrics


def check_tags(path: str, rows: Sequence[TaggedSentence], labels: Sequence[str]) -> None:
    """Names the tags that don't occur in training and so count as errors; refuses a file of them.

    Raises:
        InputError: none of the file's tags occurs in training.
    """
    counts = Counter(tag for row in rows for tag in row.tags)
    unknown = [tag for tag in counts if tag not in labels]
    if unknown and len(unknown) == len(counts):
        raise InputError(
            f"{path}: none of its tags occurs in the training file, as {unknown[0]!r} doesn't: "
            "check --tag-column, or give files of the same tags."
        )
    if unknown:
        named = ", ".join(f"{tag} {counts[tag]}" for tag in unknown[:10])
        warnings.warn(
            f"{path}: {len(unknown)} tags don't occur in the training file, and their words count "
            f"as errors: {named}.",
            stacklevel=2,
        )


def scheme_of(rows: Sequence[TaggedSentence], labels: Sequence[str]) -> Scheme:
    """What the tags say, by the tags in use."""
    if entities.OUTSIDE not in labels:
        return ""
    return "strict" if entities.is_strict(row.tags for row in rows) else "entities"


def predict(preset: keras_bert.Preset, rows: Sequence[TaggedSentence]) -> list[Tagged]:
    """The tags that `keras_bert.tag` gives, and their probabilities."""
    texts = [given_words(preset.tokenizer, row.words) for row in rows]
    logits = inference.word_logits(preset, texts)
    results = []
    for text, each, classes in zip(texts, logits, inference.word_classes(logits), strict=True):
        tags = word_tags(classes, text.firsts, preset.labels)
        if each.ndim == 3:  # a CRF's: given the tag before
            each = each[np.arange(len(each)), np.append(0, classes + 1)[:-1]]
        best = iter(softmax(each).max(axis=-1) if len(each) else ())
        results.append(Tagged(tags, [float(next(best)) if first >= 0 else float("nan")
                                     for first in text.firsts]))  # fmt: skip
    return results


def scores(
    rows: Sequence[TaggedSentence], predicted: Sequence[Tagged], scheme: Scheme
) -> dict[str, float]:
    """Accuracy over words; of entities, precision, recall, F1, and F1 where B or S must begin."""
    true, found = [row.tags for row in rows], [each.tags for each in predicted]
    right = [a == b for x, y in zip(true, found, strict=True) for a, b in zip(x, y, strict=True)]
    results = {}
    if scheme:
        precision, recall, f1, *_ = entities.entity_scores(true, found)[""]
        results = {"entity_f1": f1, "entity_precision": precision, "entity_recall": recall}
    if scheme == "strict":
        results["strict_entity_f1"] = entities.entity_scores(true, found, strict=True)[""].f1
    return results | {"accuracy": float(np.mean(right))}


def prediction_rows(
    rows: Sequence[TaggedSentence], predicted: Sequence[Tagged]
) -> list[dict[str, Any]]:
    """What `write_predictions` takes: words, true tags where there are any, predicted ones."""
    return [
        {"line": row.line, "words": row.words}
        | ({"tags": row.tags} if row.tags else {})
        | {"predicted": found.tags}
        for row, found in zip(rows, predicted, strict=True)
    ]


def write_columns(
    path: pathlib.Path, rows: Sequence[TaggedSentence], predicted: Sequence[Tagged]
) -> None:
    """Word, true tag (if any) and predicted tag a line, as conlleval and its like read them."""
    lines = []
    for row, found in zip(rows, predicted, strict=True):
        columns = [row.words, row.tags, found.tags] if row.tags else [row.words, found.tags]
        for each in zip(*columns, strict=True):
            # A word of JSON lines may hold anything.
            lines.append("\t".join(re.sub("[\t\r\n]", " ", cell) for cell in each))
        lines.append("")
    write_text(path, "\n".join(lines) + "\n")


def score_tables(
    rows: Sequence[TaggedSentence], predicted: Sequence[Tagged], scheme: Scheme
) -> list[Table]:
    """Scores of each type of entity; of other tags, whose accuracy is how high."""
    true, found = [row.tags for row in rows], [each.tags for each in predicted]
    if scheme:
        by_type = entities.entity_scores(true, found)
        scored = [(name or "all", *score) for name, score in by_type.items()]
        columns = ("type", "precision", "recall", "F1", "true", "predicted", "right")
        note = "An entity is right if its first and last word and its type are (seqeval's default)."
        return [Table("Entities", columns, scored, note=note)]
    pairs = Counter((a, a == b) for x, y in zip(true, found, strict=True)
                    for a, b in zip(x, y, strict=True))  # fmt: skip
    totals = Counter(tag for tags in true for tag in tags)
    table = [(tag, n, pairs[tag, True] / n) for tag, n in totals.most_common()]
    return [Table("Tags", ("tag", "words", "accuracy"), table)]


def errors(rows: Sequence[TaggedSentence], predicted: Sequence[Tagged], count: int = 30) -> Table:
    """The wrong tags of which the model was surest, in their sentences."""
    wrong = []
    for row, (tags, probabilities) in zip(rows, predicted, strict=True):
        for i, probability in enumerate(probabilities):
            if tags[i] != row.tags[i] and probability == probability:
                around = [*row.words[max(0, i - 6) : i], f"[{row.words[i]}]",
                          *row.words[i + 1 : i + 7]]  # fmt: skip
                wrong.append((row.line, " ".join(around), row.tags[i], tags[i], probability))
    wrong.sort(key=lambda each: -each[-1])
    columns = ("line", "word", "true", "predicted", "probability")
    return Table("Most confident errors", columns, wrong[:count])


if __name__ == "__main__":
    recipe.run(main, Args)
