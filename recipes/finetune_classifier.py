r"""Fine-tune BERT to classify texts (Devlin et al., 2018, section 4.1).

    python recipes/finetune_classifier.py --checkpoint runs/mini/preset \
        --train-file train.tsv --dev-file dev.tsv --output-dir runs/topics

A file is a table of tab-separated columns whose first line names `label` and `text`; without
that line, a row is `label <tab> text`.

Expect: 40 seconds on two CPU cores for 12 passes over 1,525 sentences with a tiny BERT, as in
`quickstart.py`: accuracy 0.65 on eight topics, where the commonest has a share of 0.25.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections import Counter
from typing import Any, Literal

import keras
import numpy as np

import keras_bert
from keras_bert import recipe
from keras_bert.data.texts import LabelledText, read_labelled_texts
from keras_bert.errors import InputError
from keras_bert.files import write_json
from keras_bert.report import Table, history_curves, write_report
from keras_bert.tokenizer_checks import check_unknown
from keras_bert.training import callbacks

SCORES_NOTE = "Of the epoch with the highest accuracy on the dev file, on that same file."


@dataclasses.dataclass(frozen=True)
class Args:
    """Fine-tune BERT to classify texts."""

    checkpoint: str
    """Preset to start from."""
    train_file: str
    """Table to train on: tab-separated columns `label` and `text`, named in the first line or in
    this order without one."""
    dev_file: str
    """Table to choose the best epoch by, and to score it on."""
    output_dir: str
    """Where the preset, metrics and curves go."""
    max_sequence_length: int = 128
    """Tokens of a text, [CLS] and [SEP] included; the ends of longer texts are cut off."""
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
    """For the head's initial weights, dropout and order."""
    overwrite: bool = False
    """Replace the run in `output_dir`."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    args = recipe.on_this_host(args)
    recipe.check_output_dir(args.output_dir, overwrite=args.overwrite)
    recipe.check_training_numbers(args)
    if args.epochs < 1:
        raise InputError(f"--epochs must be at least 1. Received: {args.epochs}.")
    strategy = keras_bert.training.strategy(args.strategy, args.tpu or None)
    print(keras_bert.training.describe_batch(strategy, args.batch_size, args.accumulate))
    keras.utils.set_random_seed(args.seed)
    keras.config.set_dtype_policy(args.precision)

    # ---- Data ------------------------------------------------------------------
    rows, dev_rows = read_labelled_texts(args.train_file), read_labelled_texts(args.dev_file)
    labels = tuple(sorted({row.label for row in rows}))
    if len(labels) < 2:
        raise InputError(
            f"{args.train_file} holds one class only, {labels[0]!r}: give at least two."
        )
    counts = Counter(row.label for row in rows).most_common()
    print(f"{len(rows)} texts of {len(labels)} classes:", ", ".join(f"{c} {n}" for c, n in counts))
    with strategy.scope():
        base = keras_bert.load(args.checkpoint)
    check_unknown(base.tokenizer, [row.text for row in rows[:2000]])
    if not 3 <= args.max_sequence_length <= base.config.max_sequence_length:
        raise InputError(
            f"--max-sequence-length is {args.max_sequence_length}; it must be at least 3, and the "
            f"position table of {args.checkpoint} ends at {base.config.max_sequence_length}."
        )

    def batches(rows: list[LabelledText], training: bool) -> Any:
        return keras_bert.data.classification(
            rows,
            base.tokenizer,
            labels,
            args.batch_size,
            max_sequence_length=args.max_sequence_length,
            seed=args.seed,
            training=training,
        )

    train = batches(rows, training=True)
    try:
        dev = batches(dev_rows, training=False)
    except InputError as error:
        raise InputError(f"{args.dev_file}, {error}") from error

    # ---- Model -----------------------------------------------------------------
    updates = args.epochs * len(train)
    rate = keras_bert.training.WarmupLinear(
        args.learning_rate, round(args.warmup_ratio * updates), updates
    )
    with strategy.scope():
        model = keras_bert.tasks.text_classifier(base.encoder, len(labels))
        model.compile(
            keras_bert.training.AdamW(rate, weight_decay=args.weight_decay),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            weighted_metrics=["accuracy"],
            accumulate=args.accumulate,
            steps_per_execution=args.steps_per_execution,
        )

    # ---- Train -----------------------------------------------------------------
    folder = recipe.start_run(args.output_dir, args, overwrite=args.overwrite)
    started = time.perf_counter()
    model.fit(
        train,
        epochs=args.epochs,
        validation_data=dev,
        shuffle=False,
        verbose=0,
        callbacks=[
            callbacks.ProgressBar(updates, "Fine-tuning"),
            callbacks.History(folder / "history.csv"),
            keras.callbacks.TensorBoard(folder / "logs"),
            keras.callbacks.EarlyStopping(
                "val_accuracy", mode="max", patience=args.epochs, restore_best_weights=True
            ),
        ],
    )
    seconds = time.perf_counter() - started

    # ---- Save ------------------------------------------------------------------
    settings = {"max_sequence_length": args.max_sequence_length}
    keras_bert.save(
        keras_bert.Preset(base.config, base.encoder, base.tokenizer, model, labels, settings),
        folder / "preset",
    )
    logits = model.predict(dev, verbose=0)["label"]
    predicted = [labels[i] for i in logits.argmax(axis=-1)]
    right = np.equal(predicted, [row.label for row in dev_rows])
    commonest = Counter(row.label for row in dev_rows).most_common(1)[0][1] / len(dev_rows)
    by_epoch = callbacks.read_history(folder / "history.csv")["val_accuracy"]
    metrics = {
        "best_epoch": int(np.argmax(by_epoch)) + 1,
        "accuracy": round(float(right.mean()), 4),
        "commonest_class_share": round(commonest, 4),
        "train_seconds": round(seconds, 1),
        "examples_per_second": round(args.epochs * len(rows) / seconds, 1),
    }
    write_json(folder / "metrics.json", metrics)
    report(folder, args, metrics, dev_rows, predicted)
    print(f"Report: {folder / 'report.html'}")
    return metrics


def report(
    folder: pathlib.Path,
    args: Args,
    metrics: dict[str, Any],
    rows: list[LabelledText],
    predicted: list[str],
) -> None:
    """Scores, curves and who is taken for whom."""
    history = callbacks.read_history(folder / "history.csv")

    counts = Counter(zip([row.label for row in rows], predicted, strict=True))
    confusions = [(true, guess, n) for (true, guess), n in counts.most_common() if true != guess]
    write_report(
        folder / "report.html",
        "Text classification",
        [
            Table("Scores", ("name", "value"), list(metrics.items()), note=SCORES_NOTE),
            history_curves("Loss", history, "loss", "nats"),
            history_curves("Accuracy", history, "accuracy", "share"),
            Table("Commonest confusions", ("true", "predicted", "texts"), confusions[:20]),
            Table("Arguments", ("name", "value"), list(dataclasses.asdict(args).items())),
        ],
        recipe.command(),
    )


if __name__ == "__main__":
    recipe.run(main, Args)
