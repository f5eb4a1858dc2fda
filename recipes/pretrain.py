r"""Pretrain BERT with masked-LM and next-sentence prediction (Devlin et al., 2018, section 3.1).

    python recipes/pretrain.py --data data/en128 --dev-data data/en128/dev --size mini \
        --steps 1200 --batch-size 32 --learning-rate 1e-3 --warmup-ratio 0.1 \
        --output-dir runs/mini

`--data` is a folder of `create_pretraining_data.py`. The defaults are the paper's (appendix
A.2); a run on one small machine wants fewer steps and a higher rate, as above.

Expect: for that command, 11 minutes on two CPU cores and a masked-LM loss at [MASK] positions
0.17 nat below a unigram model's (`recipes/README.md` has the table and the curve). The paper's
own run, `--size base` with the defaults, wants accelerators.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Literal

import keras
import numpy as np

import keras_bert
from keras_bert import recipe
from keras_bert.data import batches, records
from keras_bert.errors import InputError
from keras_bert.evaluation import (
    evaluate_pretraining,
    masked_examples,
    unigram_cross_entropy,
)
from keras_bert.files import write_json
from keras_bert.report import Examples, Table, history_curves, write_report
from keras_bert.training import callbacks

EVALUATION_BATCH = 32
SCORES_NOTE = (
    "_mask, _kept, _random: positions that show [MASK], the true token, another token. "
    "unigram: what guessing by frequency scores at the [MASK] positions."
)


@dataclasses.dataclass(frozen=True)
class Args:
    """Pretrain BERT with masked-LM and next-sentence prediction."""

    data: str
    """Folder of records to train on."""
    output_dir: str
    """Where the preset, metrics, curves and checkpoints go."""
    dev_data: str = ""
    """Folder of records to evaluate on; empty: no evaluation."""
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "base"
    """The encoder's size, from 2 layers of 128 to 24 of 1024."""
    checkpoint: str = ""
    """Preset to continue from, in place of `size`."""
    steps: int = 1_000_000
    """Updates in all."""
    evaluate_every: int = 0
    """Updates between evaluations and checkpoints, Keras's "epoch"; 0: a tenth of the run."""
    batch_size: int = 256
    """Examples an update."""
    learning_rate: float = 1e-4
    """Peak rate."""
    warmup_ratio: float = 0.01
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
    recompute: bool = False
    """Compute activations twice instead of keeping them: less memory, a third more time."""
    steps_per_execution: int = 1
    """Updates a call of the compiled step: more saves time on a TPU."""
    seed: int = 0
    """For initial weights, dropout, order and masks."""
    resume: bool = False
    """Go on from the last checkpoint in `output_dir`."""
    overwrite: bool = False
    """Replace the run in `output_dir`."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    args = recipe.on_this_host(args)
    recipe.check_output_dir(args.output_dir, overwrite=args.overwrite, resume=args.resume)
    recipe.check_training_numbers(args)
    if args.steps < 1 or args.evaluate_every < 0:
        raise InputError(
            "--steps must be at least 1, --evaluate-every at least 0. "
            f"Received: {args.steps}, {args.evaluate_every}."
        )
    strategy = keras_bert.training.strategy(args.strategy, args.tpu or None)
    print(keras_bert.training.describe_batch(strategy, args.batch_size, args.accumulate))
    keras.utils.set_random_seed(args.seed)
    keras.config.set_dtype_policy(args.precision)

    # ---- Data ------------------------------------------------------------------
    train = batches.pretraining(args.data, args.batch_size, args.seed)
    manifest = records.read_manifest(args.data)
    dev = None
    if args.dev_data:
        dev = batches.pretraining(args.dev_data, EVALUATION_BATCH, args.seed, training=False)

    # ---- Model -----------------------------------------------------------------
    rate = keras_bert.training.WarmupLinear(
        args.learning_rate, round(args.warmup_ratio * args.steps), args.steps
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with strategy.scope():
        preset = build(args, manifest)
        keras_bert.training.recompute(preset.model, args.recompute)
        preset.model.compile(
            keras_bert.training.AdamW(rate, weight_decay=args.weight_decay),
            {"masked_lm": loss, "next_sentence": loss},
            weighted_metrics={"masked_lm": ["accuracy"], "next_sentence": ["accuracy"]},
            accumulate=args.accumulate,
            steps_per_execution=args.steps_per_execution,
        )

    length, replicas = manifest["settings"]["max_sequence_length"], strategy.num_replicas_in_sync
    print(
        keras_bert.training.memory_estimate(
            preset.model, args.batch_size, length, replicas=replicas
        )
    )

    # ---- Train -----------------------------------------------------------------
    folder = recipe.start_run(args.output_dir, args, overwrite=args.overwrite, resume=args.resume)
    write_json(folder / "manifest.json", manifest)
    checkpoint = callbacks.latest(folder / "checkpoints")
    updates = callbacks.restore(preset.model, checkpoint) if checkpoint else 0
    every = args.evaluate_every or max(1, args.steps // 10)
    told = [
        callbacks.ProgressBar(args.steps, "Pretraining"),
        callbacks.History(folder / "history.csv"),
        callbacks.Checkpoints(folder / "checkpoints", every),
        keras.callbacks.TensorBoard(folder / "logs"),
    ]
    # The last epoch is shorter where `steps` isn't a multiple of `every`.
    for end in (args.steps - args.steps % every, args.steps):
        if updates < end:
            preset.model.fit(
                train.skip(updates),
                initial_epoch=updates // every,
                epochs=-(-end // every),
                steps_per_epoch=min(every, end - updates),
                validation_data=dev,
                shuffle=False,
                verbose=0,
                callbacks=told,
            )
            updates = end

    # ---- Save ------------------------------------------------------------------
    keras_bert.save(preset, folder / "preset")
    seconds = sum(callbacks.read_history(folder / "history.csv")["seconds"])
    metrics = {
        "train_seconds": round(seconds, 1),
        "examples_per_second": round(args.steps * args.batch_size / seconds, 1),
    }
    if dev is not None:
        metrics |= evaluate(preset, args, manifest, dev)
    write_json(folder / "metrics.json", metrics)
    report(folder, args, preset, metrics, dev)
    print(f"Report: {folder / 'report.html'}")
    return metrics


def build(args: Args, manifest: dict[str, Any]) -> keras_bert.Preset:
    """The model to train, fresh or from a checkpoint, that fits the data."""
    described = manifest["tokenizer"]
    if args.checkpoint:
        preset = keras_bert.load(args.checkpoint)
        config, encoder, tokenizer = preset.config, preset.encoder, preset.tokenizer
        model = preset.model
        if model.name != "pretraining":
            model = keras_bert.tasks.pretraining(encoder)
    else:
        tokenizer = keras_bert.WordPiece(
            pathlib.Path(args.data) / "vocab.txt", **described["config"]
        )
        config = keras_bert.BertConfig.of_size(args.size, vocabulary_size=tokenizer.vocabulary_size)
        encoder = keras_bert.bert(config)
        model = keras_bert.tasks.pretraining(encoder)
    for folder in filter(None, (args.data, args.dev_data)):
        records.check_manifest(
            records.read_manifest(folder),
            folder,
            tokenizer=tokenizer,
            vocabulary_size=config.vocabulary_size,
            max_sequence_length=config.max_sequence_length,
        )
    settings = {"max_sequence_length": config.max_sequence_length}
    return keras_bert.Preset(config, encoder, tokenizer, model, settings=settings)


def evaluate(
    preset: keras_bert.Preset, args: Args, manifest: dict[str, Any], dev: Any
) -> dict[str, float]:
    """Scores on the dev data, and what guessing by frequency would score there."""
    examples = records.read_examples(args.dev_data)
    works = np.stack([example["works"] for example in examples.as_numpy_iterator()])
    scores = evaluate_pretraining(preset.model, dev, works, preset.tokenizer.mask_id)
    counts = np.zeros(preset.config.vocabulary_size, np.int64)
    for example in records.read_examples(args.data).as_numpy_iterator():
        counts += np.bincount(example["token_ids"], minlength=len(counts))
    unigram = unigram_cross_entropy(
        counts, dev, preset.tokenizer.mask_id, preset.tokenizer.special_ids
    )
    if unigram is not None:
        scores["unigram_loss_mask"] = unigram
    return {name: round(score, 4) for name, score in scores.items()}


def report(
    folder: pathlib.Path, args: Args, preset: keras_bert.Preset, metrics: dict[str, Any], dev: Any
) -> None:
    """Curves, scores and a few masked examples with the model's guesses."""
    history = callbacks.read_history(folder / "history.csv")
    sections: list[Any] = [
        Table("Scores", ("name", "value"), list(metrics.items()), note=SCORES_NOTE),
        history_curves("Loss", history, "loss", "nats"),
        history_curves("Accuracy", history, "accuracy", "share"),
        history_curves("Learning rate", history, "learning_rate", "rate"),
    ]
    if dev is not None:
        rows = masked_examples(preset.model, dev, preset.tokenizer)
        sections.append(Examples("Masked examples with the model's guesses", rows))
    sections.append(Table("Arguments", ("name", "value"), list(dataclasses.asdict(args).items())))
    write_report(folder / "report.html", "Pretraining", sections, recipe.command())


if __name__ == "__main__":
    recipe.run(main, Args)
