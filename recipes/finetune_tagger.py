r"""Fine-tune BERT to tag words: names, parts of speech, slots (Devlin et al., 2018, section 5.3).

    python recipes/finetune_tagger.py --checkpoint minilm --train-file wnut17/train.conll \
        --dev-file wnut17/dev.conll --learning-rate 5e-5 --output-dir runs/names

Files are columns (CoNLL), CoNLL-U, UNER's iob2 or JSON lines, told apart by what's in them. Where
one of the tags is `O`, tags are entities' and are scored by F1 of whole entities, as seqeval
does by default; else by accuracy.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
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


@dataclasses.dataclass(frozen=True)
class Args:
    """Fine-tune BERT to tag words."""

    checkpoint: str
    """Folder to start from: a preset, Hugging Face's, Google's or KerasHub's."""
    train_file: str
    """Tagged sentences to train on."""
    dev_file: str
    """Tagged sentences to choose the best epoch by, and to score it on."""
    output_dir: str
    """Where the preset, metrics, predictions and the report go."""
    test_file: str = ""
    """Tagged sentences to score the best epoch on besides."""
    tag_column: int = 0
    """The column of tags, from 1; 0: the last one, or the usual one of CoNLL-U and iob2."""
    crf: bool = False
    """Choose the tags of a sentence together, by a conditional random field on top."""
    max_sequence_length: int = 128
    """Tokens of a window, [CLS] and [SEP] included; a longer sentence is read in several."""
    batch_size: int = 32
    """Sentences an update; a long one's windows count one by one."""
    epochs: int = 3
    """Passes over the training file."""
    learning_rate: float = 5e-5
    """Peak rate; the paper picks the best of 5e-5, 3e-5 and 2e-5."""
    warmup_ratio: float = 0.1
    """Share of the updates that climb to the peak rate; then it falls to 0."""
    weight_decay: float = 0.01
    """Of AdamW, on all weights but biases and layer norms."""
    layer_decay: float = 1.0
    """Factor of the rate from each layer to the one below it."""
    freeze_layers: int = 0
    """Hold the embeddings and this many of the lowest layers as they are."""
    reinitialize_layers: int = 0
    """Draw this many of the highest layers anew."""
    search: bool = False
    """Try the paper's grid of rates, batches and epochs, and keep the best."""
    seeds: int = 1
    """Runs, each with a seed of its own."""
    patience: int = 0
    """Epochs without a better score after which a run stops; 0: never."""
    strategy: Literal["one", "mirrored", "multiworker", "tpu"] = "one"
    """One device; all GPUs of this host; the hosts of TF_CONFIG; a TPU."""
    tpu: str = ""
    """The TPU's name; empty: the one of this machine."""
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    """Keras's dtype policy."""
    accumulate: int = 1
    """Micro-batches an update on each replica: less memory, the same update."""
    steps_per_execution: int = 1
    """Updates a call of the compiled step: more saves time on a TPU."""
    seed: int = 0
    """For the head's initial weights, dropout and order; the first of several."""
    smoke: bool = False
    """One epoch on a few sentences, to see that the command works."""
    overwrite: bool = False
    """Replace the run in `output_dir`."""


class Tagged(NamedTuple):
    """A sentence's predicted tags and their probabilities; NaN: the word has no piece."""

    tags: list[str]
    probabilities: list[float]


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    args, strategy = finetuning.set_up(args)

    # ---- Data ------------------------------------------------------------------
    files = {"train": args.train_file, "dev": args.dev_file, "test": args.test_file}
    data = {name: read_tagged_sentences(path, args.tag_column or None)
            for name, path in files.items() if path}  # fmt: skip
    if args.smoke:
        data = {name: rows[: finetuning.SMOKE_EXAMPLES] for name, rows in data.items()}
    counts = Counter(tag for row in data["train"] for tag in row.tags)
    labels = tuple(sorted(counts))
    if len(labels) < 2:
        raise InputError(f"{args.train_file} holds one tag only, {labels[0]!r}: give at least two.")
    is_entities = entities.OUTSIDE in labels
    print(f"{len(data['train'])} sentences, {counts.total()} words, {len(labels)} tags:",
          ", ".join(f"{tag} {n}" for tag, n in counts.most_common(20)))  # fmt: skip
    with strategy.scope():
        base = keras_bert.load(args.checkpoint)
    check_unknown(base.tokenizer, [" ".join(row.words) for row in data["train"][:2000]])
    finetuning.check_lengths(args, base)

    # ---- Model -----------------------------------------------------------------
    def build(args: Args) -> tuple[keras_bert.Preset, keras.Model]:
        encoder = finetuning.start_encoder(args, base)
        model = keras_bert.tasks.token_classifier(encoder, len(labels), crf=args.crf)
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
    metric = "entity_f1" if is_entities else "accuracy"
    task = finetuning.Task(
        build=build,
        batches=batches,
        num_examples=len(data["train"]),
        loss=CrfLoss()
        if args.crf
        else keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        score=lambda preset: scores(data["dev"], predict(preset, data["dev"]), is_entities),
        metric=metric,
        floor=scores(data["dev"], guesses, is_entities)[metric],
    )
    folder = recipe.start_run(args.output_dir, args, overwrite=args.overwrite)
    best, metrics = finetuning.finetune(args, task, strategy, folder)

    # ---- Save ------------------------------------------------------------------
    keras_bert.save(best.preset, folder / "preset")
    predicted = predict(best.preset, data["dev"])
    if "test" in data:
        tested = scores(data["test"], predict(best.preset, data["test"]), is_entities)
        metrics["test"] = {name: round(value, 4) for name, value in tested.items()}
    write_json(folder / "metrics.json", metrics)
    rows = [
        {"line": row.line, "words": row.words, "tags": row.tags, "predicted": found.tags}
        for row, found in zip(data["dev"], predicted, strict=True)
    ]
    finetuning.write_predictions(folder, rows)
    write_columns(folder / "predictions.conll", data["dev"], predicted)
    sections = [*entity_tables(data["dev"], predicted, is_entities), errors(data["dev"], predicted)]
    finetuning.write_run_report(folder, "Tagging", best.args, metrics, sections)
    print(f"Report: {folder / 'report.html'}")
    return metrics


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
    rows: Sequence[TaggedSentence], predicted: Sequence[Tagged], is_entities: bool
) -> dict[str, float]:
    """Accuracy over words and, of entities, precision, recall, F1, and F1 by IOB2's rules."""
    true, found = [row.tags for row in rows], [each.tags for each in predicted]
    right = [a == b for x, y in zip(true, found, strict=True) for a, b in zip(x, y, strict=True)]
    results = {"accuracy": float(np.mean(right))}
    if is_entities:
        precision, recall, f1, *_ = entities.entity_scores(true, found)[""]
        strict = entities.entity_scores(true, found, strict=True)[""].f1
        results = {"entity_f1": f1, "entity_precision": precision, "entity_recall": recall,
                   "strict_entity_f1": strict} | results  # fmt: skip
    return results


def write_columns(
    path: pathlib.Path, rows: Sequence[TaggedSentence], predicted: Sequence[Tagged]
) -> None:
    """Word, true tag and predicted tag a line, as conlleval and its like read them."""
    lines = []
    for row, found in zip(rows, predicted, strict=True):
        for each in zip(row.words, row.tags, found.tags, strict=True):
            # A word of JSON lines may hold anything.
            lines.append("\t".join(re.sub("[\t\r\n]", " ", cell) for cell in each))
        lines.append("")
    write_text(path, "\n".join(lines) + "\n")


def entity_tables(
    rows: Sequence[TaggedSentence], predicted: Sequence[Tagged], is_entities: bool
) -> list[Table]:
    """Scores of each type of entity; of other tags, whose accuracy is how high."""
    true, found = [row.tags for row in rows], [each.tags for each in predicted]
    if is_entities:
        by_type = entities.entity_scores(true, found)
        table = [(name or "all", *score) for name, score in by_type.items()]
        columns = ("type", "precision", "recall", "F1", "true", "predicted", "right")
        note = "An entity is right if its first and last word and its type are (seqeval's default)."
        return [Table("Entities", columns, table, note=note)]
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
