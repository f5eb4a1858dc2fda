r"""Fine-tune BERT on pairs of texts (Devlin et al., 2018, sections 4.1 and 4.4).

    python recipes/finetune_pairs.py --checkpoint runs/mini/preset \
        --train-file train.tsv --dev-file dev.tsv --output-dir runs/inference

Inference and paraphrase are classes, similarity a number (`--regression`), and with
`--multiple-choice` one of several texts goes with the first. A file is TSV, CSV or JSON lines with
columns such as `sentence1`, `sentence2` and `label`, or `premise` and `hypothesis`; of choices,
`context`, `choice0`, `choice1`, ... and `label`. `--task mnli` and the like take a benchmark's
files as they are.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, Literal

import keras_bert
from keras_bert import finetuning, recipe, scores, text_tasks
from keras_bert.data import benchmarks, tables, texts
from keras_bert.data.pairs import check_choices, multiple_choice, read_choices
from keras_bert.data.tables import LabelledText
from keras_bert.errors import InputError
from keras_bert.text_logits import choice_logits, text_logits
from keras_bert.tokenizer_checks import check_unknown

Benchmark = Literal[
    "", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli", "afqmc", "cmnli", "ocnli", "csl"
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args(finetuning.Args):
    """Fine-tune BERT on pairs of texts.

    Files are TSV, CSV (.csv) or JSON lines (.jsonl, .json) with columns or keys such as
    `sentence1`, `sentence2` and `label`, or `premise`, `hypothesis` and `label`; of choices,
    `context`, `choice0`, `choice1`, ... (or a list `choices`) and `label`, a number from 0.
    """

    task: Benchmark = ""
    """A benchmark whose files these are; its answers for `--test-file` go to `submission/`."""
    text_column: str = ""
    """Name of the first text's column, or its number from 1 without names; empty: guess."""
    pair_column: str = ""
    """The same of the second text's."""
    label_column: str = ""
    """The same of the label's."""
    labels: tuple[str, ...] = ()
    """The classes in the order of the logits; empty: those of the training file, sorted."""
    regression: bool = False
    """Labels are numbers, such as a similarity."""
    multiple_choice: bool = False
    """A row has a text and several choices, one of them right."""
    symmetric: bool = False
    """Predict the mean over both orders of a pair."""
    class_weights: bool = False
    """Examples of rare classes weigh more, so that all classes count alike."""
    metric: Literal["", "accuracy", "f1", "f1_macro", "matthews", "pearson", "spearman"] = ""
    """Score that chooses the best epoch; empty: accuracy, or spearman of numbers."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    args, strategy = finetuning.set_up(args)
    kind = kind_of(args)
    usual = benchmarks.TASKS[args.task].metric if args.task else ""
    metric = text_tasks.metric_of(kind, args.metric, usual)

    # ---- Data ------------------------------------------------------------------
    with strategy.scope():
        base = keras_bert.load(args.checkpoint)
    finetuning.check_lengths(args, base, least=5)
    rows, dev = read(args, args.train_file, kind), read(args, args.dev_file, kind)
    test = read(args, args.test_file, kind, needs_labels=False) if args.test_file else None
    labels = classes(args, kind, rows, base)
    for path, each in ((args.dev_file, dev), (args.test_file, test or [])):
        if args.multiple_choice:
            check_choices(path, each, len(labels))
        if labels:
            tables.check_labels(path, each, labels)
    if args.smoke:
        few = slice(finetuning.SMOKE_EXAMPLES)
        rows, dev, test = rows[few], dev[few], test and test[few]
    counts = Counter(row.label for row in rows).most_common(20)
    about = f"{len(labels)} classes: {', '.join(f'{c} {n}' for c, n in counts)}" if labels else ""
    print(f"{len(rows)} pairs {about}")
    check_unknown(base.tokenizer, [row.text for row in rows[:2000]])
    scale = (0.0, 1.0) if labels else text_tasks.scale_of([row.label for row in rows])
    one_shape = finetuning.needs_one_shape(args, strategy)
    parts = strategy.num_replicas_in_sync * args.accumulate
    examples = None
    if not args.multiple_choice:
        examples = texts.make_examples(
            rows,
            base.tokenizer,
            labels,
            max_sequence_length=args.max_sequence_length,
            balanced=args.class_weights,
            scale=scale,
        )

    def batches(args: Args) -> Any:
        if examples is None:
            return multiple_choice(
                rows,
                base.tokenizer,
                args.batch_size,
                max_sequence_length=args.max_sequence_length,
                layout="fixed" if one_shape else "padded",
                row_multiple=parts,
                seed=args.seed,
            )
        return texts.batches(
            examples,
            args.batch_size,
            max_sequence_length=args.max_sequence_length,
            pad_id=base.tokenizer.pad_id,
            layout="one_shape" if one_shape else "packed",
            row_multiple=parts,
            seed=args.seed,
        )

    # ---- Model -----------------------------------------------------------------
    settings: dict[str, Any] = {"max_sequence_length": args.max_sequence_length}
    settings |= {"symmetric": True} if args.symmetric else {}
    settings |= {"pair": True} if not args.multiple_choice else {}
    true = [row.label for row in dev]

    def build(args: Args) -> tuple[keras_bert.Preset, Any]:
        if not args.multiple_choice:
            return text_tasks.build(args, base, labels, settings, scale)
        encoder = finetuning.start_encoder(args, base)
        model = keras_bert.tasks.multiple_choice(encoder)
        finetuning.keep_head(args, base, model)
        preset = keras_bert.Preset(base.config, encoder, base.tokenizer, model, settings=settings)
        return preset, model

    def logits_of(preset: keras_bert.Preset, rows: list[Any]) -> Any:
        if args.multiple_choice:
            return choice_logits(preset, [row.text for row in rows], [row.pair for row in rows])
        return text_logits(preset, [row.text for row in rows], [row.pair for row in rows])

    def score(preset: keras_bert.Preset) -> dict[str, float]:
        logits = logits_of(preset, dev) * scale[1] + scale[0]
        return text_tasks.score(kind, logits, true, labels, std=scale[1])

    # ---- Train -----------------------------------------------------------------
    folder = finetuning.start_run(args, batches)
    task = finetuning.Task(
        build=build,
        batches=batches,
        num_examples=len(rows),
        loss=text_tasks.LOSSES[kind],
        score=score,
        metric=metric,
        floor=text_tasks.floor(kind, true, labels, metric),
    )
    best, metrics = finetuning.finetune(args, task, strategy, folder)
    if kind == "regression":
        metrics["untrained_cosine_spearman"] = round(untrained_spearman(base, dev), 4)

    # ---- Save ------------------------------------------------------------------
    if kind == "regression":
        text_tasks.fold_scale(best.preset.model, scale)
    preset = finetuning.settled(best, strategy, folder)
    tested = None
    if test is not None:
        tested = test, logits_of(preset, test)
        if args.task:
            answers = text_tasks.predictions(kind, tested[1], labels)
            benchmarks.write_answers(
                folder / "submission", args.task, test, answers, args.test_file
            )
    dev_logits = logits_of(preset, dev)
    text_tasks.leave_run(
        folder,
        "Pairs of texts",
        best.args,
        metrics,
        kind,
        labels,
        0.5,
        (dev, dev_logits),
        tested,
        scale[1],
    )
    return metrics


def kind_of(args: Args) -> str:
    """What the labels are: "class", which a choice's number is as well, or "regression"."""
    if args.multiple_choice and (args.regression or args.symmetric or args.class_weights):
        raise InputError(
            "--multiple-choice goes with none of --regression, --symmetric and --class-weights."
        )
    if args.task and (args.multiple_choice or args.regression):
        raise InputError(f"--task {args.task} says what the labels are: leave out the other flag.")
    kind = "regression" if args.regression else "class"
    kind = benchmarks.TASKS[args.task].kind if args.task else kind
    if args.class_weights and kind == "regression":
        raise InputError("--class-weights needs one class a row.")
    return kind


def classes(args: Args, kind: str, rows: list[LabelledText], base: keras_bert.Preset) -> list[str]:
    """Names in the order of the logits; a choice's is its number."""
    if args.multiple_choice:
        return [str(i) for i in range(len(rows[0].pair))]
    if kind == "regression":
        return []
    names = tables.class_names(args.train_file, rows, args.labels)
    return text_tasks.order_of(names, base, is_given=bool(args.labels))


def read(args: Args, path: str, kind: str, needs_labels: bool = True) -> list[LabelledText]:
    """The rows of a file; of choices, `pair` is all of them."""
    if args.multiple_choice:
        return read_choices(path, needs_labels=needs_labels)
    if args.task:
        return benchmarks.read_benchmark(path, args.task, needs_labels=needs_labels)
    return tables.read_labelled_texts(
        path,
        tables.Columns(args.text_column, args.pair_column, args.label_column),
        kind=kind,
        is_pair=True,
        needs_labels=needs_labels,
    )


def untrained_spearman(base: keras_bert.Preset, rows: list[LabelledText]) -> float:
    """What the cosine of the checkpoint's mean-pooled vectors scores, without any training."""
    first, second = (
        keras_bert.embed(base, column, pooling="mean", normalize=True)
        for column in ([row.text for row in rows], [row.pair for row in rows])
    )
    return scores.spearman([row.label for row in rows], (first * second).sum(axis=-1))


if __name__ == "__main__":
    recipe.run(main, Args)
