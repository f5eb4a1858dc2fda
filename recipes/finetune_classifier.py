r"""Fine-tune BERT to classify texts (Devlin et al., 2018, section 4.1).

    python recipes/finetune_classifier.py --checkpoint runs/mini/preset \
        --train-file train.tsv --dev-file dev.tsv --output-dir runs/topics

A file is TSV, CSV or JSON lines with columns such as `label` and `text` or `sentence`; a TSV
without a line of names is `label <tab> text`. `--multi-label` takes several labels a row,
`--regression` numbers, and `--task cola` and the like a benchmark's files as they are.

Expect: 40 seconds on two CPU cores for 12 passes over 1,525 sentences with a tiny BERT, as in
`quickstart.py`: accuracy 0.68 on eight topics, where the commonest has a share of 0.25.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, Literal

import keras_bert
from keras_bert import finetuning, recipe, text_tasks
from keras_bert.data import benchmarks, tables, texts
from keras_bert.errors import InputError
from keras_bert.text_logits import text_logits
from keras_bert.tokenizer_checks import check_unknown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args(finetuning.Args):
    """Fine-tune BERT to classify texts.

    Files are TSV, CSV (.csv) or JSON lines (.jsonl, .json) with columns or keys such as `label`
    and `text` or `sentence`; a TSV without a line of names is label, tab, text.
    """

    task: Literal["", "cola", "sst2", "tnews"] = ""
    """A benchmark whose files these are; its answers for `--test-file` go to `submission/`."""
    text_column: str = ""
    """Name of the text's column, or its number from 1 in files without names; empty: guess."""
    label_column: str = ""
    """The same of the label's."""
    labels: tuple[str, ...] = ()
    """The classes in the order of the logits; empty: those of the training file, sorted."""
    multi_label: bool = False
    """A row has any number of labels."""
    label_separator: str = ","
    """Between the labels of a row, with `--multi-label`."""
    regression: bool = False
    """Labels are numbers."""
    class_weights: bool = False
    """Examples of rare classes weigh more, so that all classes count alike."""
    metric: Literal["", "accuracy", "f1", "f1_macro", "matthews", "pearson", "spearman"] = ""
    """Score that chooses the best epoch; empty: accuracy, f1 of several labels, spearman."""
    truncate: Literal["head", "tail", "head+tail"] = "head"
    """What is kept of texts that are too long."""
    windows: int = 0
    """Read them in windows instead, one every so many tokens, and average; 0: don't."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    args, strategy = finetuning.set_up(args)
    kind = kind_of(args)
    usual = benchmarks.TASKS[args.task].metric if args.task else ""
    metric = text_tasks.metric_of(kind, args.metric, usual)

    # ---- Data ------------------------------------------------------------------
    with strategy.scope():
        base = keras_bert.load(args.checkpoint)
    finetuning.check_lengths(args, base)
    rows, dev = read(args, args.train_file, kind), read(args, args.dev_file, kind)
    test = read(args, args.test_file, kind, needs_labels=False) if args.test_file else None
    labels = []
    if kind != "regression":
        labels = tables.class_names(args.train_file, rows, args.labels)
        labels = text_tasks.order_of(labels, base, is_given=bool(args.labels))
        tables.check_labels(args.dev_file, dev, labels)
        tables.check_labels(args.test_file, test or [], labels)
    if args.smoke:
        few = slice(finetuning.SMOKE_EXAMPLES)
        rows, dev, test = rows[few], dev[few], test and test[few]
    counts = Counter(name for row in rows for name in tables.names_of(row.label)).most_common(20)
    about = f"{len(labels)} classes: {', '.join(f'{c} {n}' for c, n in counts)}" if labels else ""
    print(f"{len(rows)} texts {about}")
    check_unknown(base.tokenizer, [row.text for row in rows[:2000]])
    scale = text_tasks.scale_of([row.label for row in rows]) if not labels else (0.0, 1.0)
    examples = texts.make_examples(
        rows,
        base.tokenizer,
        labels,
        max_sequence_length=args.max_sequence_length,
        truncate=args.truncate,
        stride=args.windows,
        balanced=args.class_weights,
        scale=scale,
    )

    def batches(args: Args) -> Any:
        return texts.batches(
            examples,
            args.batch_size,
            max_sequence_length=args.max_sequence_length,
            pad_id=base.tokenizer.pad_id,
            layout="one_shape" if finetuning.needs_one_shape(args, strategy) else "packed",
            row_multiple=strategy.num_replicas_in_sync * args.accumulate,
            seed=args.seed,
        )

    # ---- Model -----------------------------------------------------------------
    settings: dict[str, Any] = {"max_sequence_length": args.max_sequence_length}
    settings |= {"truncate": args.truncate} if args.truncate != "head" else {}
    settings |= {"window_stride": args.windows} if args.windows else {}
    settings |= {"multi_label": True} if kind == "labels" else {}
    true = [row.label for row in dev]

    def score(preset: keras_bert.Preset) -> dict[str, float]:
        logits = text_logits(preset, [row.text for row in dev]) * scale[1] + scale[0]
        threshold = text_tasks.threshold_of(kind, logits, true, labels)
        return text_tasks.score(kind, logits, true, labels, threshold, scale[1])

    # ---- Train -----------------------------------------------------------------
    folder = finetuning.start_run(args, batches)
    task = finetuning.Task(
        build=lambda args: text_tasks.build(args, base, labels, settings, scale),
        batches=batches,
        num_examples=len(rows),
        loss=text_tasks.LOSSES[kind],
        score=score,
        metric=metric,
        floor=text_tasks.floor(kind, true, labels, metric),
    )
    best, metrics = finetuning.finetune(args, task, strategy, folder)

    # ---- Save ------------------------------------------------------------------
    text_tasks.fold_scale(best.preset.model, scale)
    preset = finetuning.settled(best, strategy, folder)
    logits = text_logits(preset, [row.text for row in dev])
    threshold = text_tasks.threshold_of(kind, logits, true, labels)
    if kind == "labels":
        preset = dataclasses.replace(preset, settings=settings | {"threshold": threshold})
        metrics["threshold"] = threshold
        keras_bert.save(preset, folder / "preset")
    tested = None
    if test is not None:
        tested = test, text_logits(preset, [row.text for row in test])
        if args.task:
            answers = text_tasks.predictions(kind, tested[1], labels, threshold)
            benchmarks.write_answers(
                folder / "submission", args.task, test, answers, args.test_file
            )
    text_tasks.leave_run(
        folder,
        "Text classification",
        best.args,
        metrics,
        kind,
        labels,
        threshold,
        (dev, logits),
        tested,
        scale[1],
    )
    return metrics


def kind_of(args: Args) -> str:
    """What the labels are: "class", "labels" or "regression"."""
    if args.multi_label and args.regression:
        raise InputError("Choose one of --multi-label and --regression.")
    if args.task and (args.multi_label or args.regression):
        raise InputError(f"--task {args.task} has one class a row: leave out the other flag.")
    if args.class_weights and (args.multi_label or args.regression):
        raise InputError("--class-weights needs one class a row.")
    if args.multi_label and not args.label_separator:
        raise InputError("--label-separator is empty: give what stands between a row's labels.")
    if not 0 <= args.windows <= args.max_sequence_length - 2:
        raise InputError(
            "--windows must be from 0 to --max-sequence-length less 2, or tokens would be skipped. "
            f"Received: {args.windows}."
        )
    return "labels" if args.multi_label else "regression" if args.regression else "class"


def read(args: Args, path: str, kind: str, needs_labels: bool = True) -> list[tables.LabelledText]:
    """The rows of a file."""
    if args.task:
        return benchmarks.read_benchmark(path, args.task, needs_labels=needs_labels)
    return tables.read_labelled_texts(
        path,
        tables.Columns(args.text_column, "", args.label_column),
        kind=kind,
        needs_labels=needs_labels,
        separator=args.label_separator,
    )


if __name__ == "__main__":
    recipe.run(main, Args)
