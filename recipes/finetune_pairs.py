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
from keras_bert import finetuning, recipe, remote, scores, text_tasks
from keras_bert.data import benchmarks, pairs, tables, texts
from keras_bert.data.tables import LabelledText
from keras_bert.errors import InputError
from keras_bert.text_logits import choice_logits, text_logits
from keras_bert.tokenizer_checks import check_unknown

Benchmark = Literal[
    "", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli", "afqmc", "cmnli", "ocnli", "csl"
]


@dataclasses.dataclass(frozen=True)
class Args:
    """Fine-tune BERT on pairs of texts."""

    checkpoint: str
    """Checkpoint to start from: a preset, or a Hugging Face, Google or KerasHub folder."""
    train_file: str
    """Table to train on: .tsv, .csv or .jsonl."""
    dev_file: str
    """Table to choose the best epoch by, and to score it on."""
    output_dir: str
    """Where the preset, metrics, predictions and curves go."""
    test_file: str = ""
    """Table to predict at the end, and to score if it has labels."""
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
    max_sequence_length: int = 128
    """Tokens of a pair, [CLS] and [SEP] included; of the longer text, the end is cut off."""
    batch_size: int = 32
    """Examples an update."""
    epochs: int = 3
    """Passes over the training file."""
    learning_rate: float = 3e-5
    """Peak rate; the paper picks the best of 5e-5, 3e-5 and 2e-5."""
    warmup_ratio: float = 0.1
    """Share of the updates that climb to the peak rate; then it falls to 0."""
    weight_decay: float = 0.01
    """Of AdamW, on all weights but biases and layer norms."""
    layer_decay: float = 1.0
    """What the rate is multiplied by for each layer down from the head."""
    freeze_layers: int = 0
    """Keep the embeddings and the lowest K layers as they are."""
    reinitialize_layers: int = 0
    """Draw the top K layers and the pooler anew."""
    patience: int = 0
    """Stop after so many epochs without a better score; 0: don't."""
    search: bool = False
    """Try the paper's rates, batch sizes and epochs, 18 runs, and keep the best."""
    seeds: int = 1
    """Runs with seeds from `--seed` on: their mean and spread are reported, the best kept."""
    seed: int = 0
    """For the head's initial weights, dropout and order."""
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
    smoke: bool = False
    """Try the command out: one epoch on the first rows."""
    overwrite: bool = False
    """Replace the run in `output_dir`."""


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
    labels = classes(args, kind, rows, base)
    if labels:
        tables.check_labels(args.dev_file, dev, labels)
    counts = Counter(row.label for row in rows).most_common(20)
    about = f"{len(labels)} classes: {', '.join(f'{c} {n}' for c, n in counts)}" if labels else ""
    print(f"{len(rows)} pairs {about}")
    check_unknown(base.tokenizer, [row.text for row in rows[:2000]])
    scale = (0.0, 1.0) if labels else text_tasks.scale_of([row.label for row in rows])
    one_shape = finetuning.needs_one_shape(args, strategy)
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
            return pairs.multiple_choice(
                rows,
                base.tokenizer,
                args.batch_size,
                max_sequence_length=args.max_sequence_length,
                fixed_length=one_shape,
                seed=args.seed,
            )
        return texts.batches(
            examples,
            args.batch_size,
            max_sequence_length=args.max_sequence_length,
            pad_id=base.tokenizer.pad_id,
            layout="one_shape" if one_shape else "packed",
            row_multiple=strategy.num_replicas_in_sync * args.accumulate,
            seed=args.seed,
        )

    # ---- Model -----------------------------------------------------------------
    settings: dict[str, Any] = {"max_sequence_length": args.max_sequence_length}
    settings |= {"symmetric": True} if args.symmetric else {}
    true = [row.label for row in dev]

    def build(args: Args) -> tuple[keras_bert.Preset, Any]:
        if not args.multiple_choice:
            return text_tasks.build(args, base, labels, settings)
        encoder = finetuning.start_encoder(args, base)
        model = keras_bert.tasks.multiple_choice(encoder)
        return keras_bert.Preset(
            base.config, encoder, base.tokenizer, model, settings=settings
        ), model

    def logits_of(preset: keras_bert.Preset, rows: list[Any]) -> Any:
        if args.multiple_choice:
            return choice_logits(preset, [row.text for row in rows], [row.pair for row in rows])
        return text_logits(preset, [row.text for row in rows], [row.pair for row in rows])

    def score(preset: keras_bert.Preset) -> dict[str, float]:
        logits = logits_of(preset, dev) * scale[1] + scale[0]
        return text_tasks.score(kind, logits, true, labels)

    # ---- Train -----------------------------------------------------------------
    folder = recipe.start_run(args.output_dir, args, overwrite=args.overwrite)
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
    preset = best.preset
    if kind == "regression":
        text_tasks.fold_scale(preset.model, scale)
    keras_bert.save(preset, folder / "preset")
    tested = None
    if test is not None:
        tested = test, logits_of(preset, test)
        if args.task:
            answers = text_tasks.predictions(kind, tested[1], labels)
            benchmarks.write_answers(
                folder / "submission", args.task, test, answers, args.test_file
            )
    text_tasks.leave_run(
        folder, "Pairs of texts", args, metrics, kind, labels, 0.5, (dev, logits_of(preset, dev)),
        tested,
    )  # fmt: skip
    return metrics


def kind_of(args: Args) -> str:
    """What the labels are: "class", which a choice's number is as well, or "regression"."""
    if args.multiple_choice and (args.regression or args.symmetric or args.class_weights):
        raise InputError(
            "--multiple-choice goes with none of --regression, --symmetric and --class-weights."
        )
    if args.class_weights and args.regression:
        raise InputError("--class-weights needs one class a row.")
    if args.task:
        return benchmarks.TASKS[args.task].kind
    return "regression" if args.regression else "class"


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
    path = remote.local(path)
    rows: list[Any]
    if args.multiple_choice:
        rows = pairs.read_choices(path, needs_labels=needs_labels)
    elif args.task:
        rows = benchmarks.read_benchmark(path, args.task, needs_labels=needs_labels)
    else:
        rows = tables.read_labelled_texts(
            path,
            tables.Columns(args.text_column, args.pair_column, args.label_column),
            kind=kind,
            is_pair=True,
            needs_labels=needs_labels,
        )
    return rows[: finetuning.SMOKE_EXAMPLES] if args.smoke else rows


def untrained_spearman(base: keras_bert.Preset, rows: list[LabelledText]) -> float:
    """What the cosine of the checkpoint's mean-pooled vectors scores, without any training."""
    first, second = (
        keras_bert.embed(base, column, pooling="mean", normalize=True)
        for column in ([row.text for row in rows], [row.pair for row in rows])
    )
    return scores.spearman([row.label for row in rows], (first * second).sum(axis=-1))


if __name__ == "__main__":
    recipe.run(main, Args)
