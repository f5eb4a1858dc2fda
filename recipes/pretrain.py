r"""Pretrain BERT with masked-LM and next-sentence prediction (Devlin et al., 2018, section 3.1).

    python recipes/pretrain.py --data data/en128 --dev-data data/en128/dev --size mini \
        --steps 1200 --batch-size 32 --learning-rate 1e-3 --warmup-ratio 0.1 \
        --output-dir runs/mini

The paper's run (appendix A.2), whose numbers are the defaults: 900,000 updates on examples of
length 128, then 100,000 of length 512, with one learning-rate schedule over both:

    python recipes/pretrain.py --data data/en128 data/en512 --dev-data data/en128/dev \
        data/en512/dev --phases 128:0.9,512:0.1 --output-dir runs/base --resume

`--data` are folders of `create_pretraining_data.py`, or of Google's records with `--vocabulary`.
With `--resume` the same command starts a run and goes on with it: killed at any moment, it ends
with the bits of one never killed (on a CPU, unless `--no-deterministic`; on accelerators where
their operations allow it). Deterministic operations cost nothing measurable on a CPU (mini, 16 x
64 tokens, TensorFlow: 175 ms of CPU time a step with them, 173 to 190 ms without). SIGTERM and
Ctrl-C save a checkpoint, then the exit code is 0. A loss that isn't finite ends the run with exit
code 1; the last good checkpoint stays, and `checkpoints/non-finite` has the batch and the weights
before it (`keras_bert.training.callbacks.load_batch` reads them).

Expect: for the first command, 11 minutes on two CPU cores and a masked-LM loss at [MASK]
positions 0.18 nat below a unigram model's (`recipes/README.md` has the table and the curve). The
paper's own run, `--size base`, wants accelerators.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any, Literal

import keras

import keras_bert
from keras_bert import pretraining, recipe, remote
from keras_bert.errors import InputError
from keras_bert.files import write_json
from keras_bert.training import AdamW, WarmupLinear, callbacks, memory_estimate
from keras_bert.training.strategies import deterministic_ops


@dataclasses.dataclass(frozen=True)
class Args:
    """Pretrain BERT with masked-LM and next-sentence prediction."""

    data: tuple[str, ...]
    """Folders of records to train on, one for each length of `phases`."""
    output_dir: str
    """Where the preset, metrics, curves and checkpoints go."""
    dev_data: tuple[str, ...] = ()
    """Folders of records to evaluate on, one for each length; none: no evaluation."""
    phases: str = ""
    """Lengths and their shares of the updates; empty: 128:0.9,512:0.1, or the only length."""
    masking: Literal["token", "whole_word", "span"] = "token"
    """What is masked together: nothing, the pieces of a word, SpanBERT's spans of words."""
    row_length: int = 0
    """Tokens of a row that several examples share; 0: each example has its own row."""
    vocabulary: str = ""
    """The vocab.txt of Google's records, which come without."""
    lowercase: bool = True
    """Whether that vocabulary is for lower-cased text."""
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "base"
    """The encoder's size, from 2 layers of 128 to 24 of 1024."""
    checkpoint: str = ""
    """Preset or other checkpoint to continue from, in place of `size`."""
    steps: int = 1_000_000
    """Updates in all."""
    evaluate_every: int = 0
    """Updates between evaluations, Keras's "epoch"; 0: a tenth of the run."""
    save_every: int = 1000
    """Updates between checkpoints; each evaluation saves one too."""
    keep: int = 2
    """Checkpoints to keep: the last so many, and the best on the dev data."""
    batch_size: int = 256
    """Examples, or packed rows, an update."""
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
    deterministic: bool = True
    """Operations that give the same bits each time: on a CPU they cost no time."""
    seed: int = 0
    """For initial weights, dropout, order and masks."""
    smoke: bool = False
    """Two updates a phase, to see whether the command works."""
    resume: bool = False
    """Go on from the last checkpoint in `output_dir`, if there is one."""
    overwrite: bool = False
    """Replace the run in `output_dir`."""


def main(args: Args) -> dict[str, Any]:
    # ---- Setup -----------------------------------------------------------------
    args = recipe.on_this_host(args)
    recipe.check_output_dir(args.output_dir, overwrite=args.overwrite, resume=args.resume)
    recipe.check_training_numbers(args)
    updates, every = count_updates(args)
    strategy = keras_bert.training.strategy(args.strategy, args.tpu or None)
    print(keras_bert.training.describe_batch(strategy, args.batch_size, args.accumulate))
    keras.config.set_dtype_policy(args.precision)
    if args.deterministic:
        keras.utils.set_random_seed(args.seed)  # first: they refuse to draw without
        deterministic_ops()

    # ---- Data ------------------------------------------------------------------
    parts = pretraining.read_parts(args, updates, every)

    # ---- Model -----------------------------------------------------------------
    preset, model = build(args, updates, parts[0], strategy)
    for part in parts:
        length, replicas = args.row_length or part.phase.length, strategy.num_replicas_in_sync
        print(memory_estimate(model, args.batch_size, length, replicas=replicas))

    # ---- Train -----------------------------------------------------------------
    folder = recipe.start_run(args.output_dir, args, overwrite=args.overwrite, resume=args.resume)
    pretraining.keep_manifests(folder / "manifest.json", parts)
    pretraining.restore(model, folder, parts)
    try:
        with callbacks.StopSignals() as stop:
            for part in parts:
                pretraining.train(model, preset.config, part, args, folder, updates, every, stop)
    except callbacks.Stopped:
        done = callbacks.updates_done(model)
        print(f"Stopped at update {done} of {updates}. The same command with --resume goes on.")
        sys.exit(0)
    except callbacks.NonFiniteError as error:
        del preset, model  # room for another

        def begin() -> keras.Model:
            return build(args, updates, parts[0], strategy)[1]

        message = pretraining.explain(error, begin, parts, folder)
        sys.exit(f"error: {message}".replace(os.fspath(folder), args.output_dir))

    # ---- Save ------------------------------------------------------------------
    keras_bert.save(preset, folder / "preset")
    seconds = sum(callbacks.read_history(folder / "history.csv")["seconds"])
    speed = "rows_per_second" if args.row_length else "examples_per_second"
    metrics = {
        "train_seconds": round(seconds, 1),
        speed: round(updates * args.batch_size / seconds, 1),
    }
    if args.dev_data:
        metrics |= pretraining.evaluate(preset, parts[-1])
    write_json(folder / "metrics.json", metrics)
    pretraining.write_run_report(folder / "report.html", args, preset, metrics, parts[-1])
    print(f"Report: {folder / 'report.html'}")
    return metrics


def count_updates(args: Args) -> tuple[int, int]:
    """Updates of the run, and of an epoch."""
    if min(args.steps, args.save_every, args.keep) < 1 or args.evaluate_every < 0:
        raise InputError(
            "--steps, --save-every and --keep must be at least 1, --evaluate-every at least 0. "
            f"Received: {args.steps}, {args.save_every}, {args.keep}, {args.evaluate_every}."
        )
    if args.row_length < 0:
        raise InputError(f"--row-length must be at least 0. Received: {args.row_length}.")
    if args.evaluate_every % args.steps_per_execution:
        raise InputError(
            "--evaluate-every must be a multiple of --steps-per-execution. Received: "
            f"{args.evaluate_every} and {args.steps_per_execution}."
        )
    if args.smoke:
        return 2 * args.steps_per_execution * len(args.data), 2 * args.steps_per_execution
    tenth = args.steps // 10 // args.steps_per_execution * args.steps_per_execution
    return args.steps, args.evaluate_every or max(tenth, args.steps_per_execution)


def build(
    args: Args, updates: int, part: pretraining.Part, strategy: Any
) -> tuple[keras_bert.Preset, keras.Model]:
    """What is saved and what is trained, which share their weights: the same at each call."""
    keras.utils.set_random_seed(args.seed)
    rate = WarmupLinear(args.learning_rate, round(args.warmup_ratio * updates), updates)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with strategy.scope():
        preset = keras_bert.load(args.checkpoint) if args.checkpoint else fresh(args, part)
        pretraining.check_data(args, preset)
        model = whole = preset.model
        if args.row_length or model.name != "pretraining":
            model = whole = keras_bert.tasks.pretraining(preset.encoder, bool(args.row_length))
            if args.row_length:
                whole = keras_bert.tasks.unpacked(model, preset.encoder)
            if preset.model.name == "pretraining":
                whole.set_weights(preset.model.get_weights())
        keras_bert.training.recompute(model, args.recompute)
        model.compile(
            AdamW(rate, weight_decay=args.weight_decay),
            {"masked_lm": loss, "next_sentence": loss},
            weighted_metrics={"masked_lm": ["accuracy"], "next_sentence": ["accuracy"]},
            accumulate=args.accumulate,
            steps_per_execution=args.steps_per_execution,
        )
    settings = {"max_sequence_length": preset.config.max_sequence_length}
    return dataclasses.replace(preset, model=whole, labels=(), settings=settings), model


def fresh(args: Args, part: pretraining.Part) -> keras_bert.Preset:
    """An encoder of the size asked for, with the vocabulary of the data."""
    if "tokenizer" in part.manifest:
        vocabulary = remote.local(os.path.join(part.folder, "vocab.txt"))
        tokenizer = keras_bert.WordPiece(vocabulary, **part.manifest["tokenizer"]["config"])
    elif args.vocabulary:
        tokenizer = keras_bert.WordPiece(remote.local(args.vocabulary), lowercase=args.lowercase)
    else:
        raise InputError(f"{part.folder} has no vocabulary: name its vocab.txt by --vocabulary.")
    size = tokenizer.vocabulary_size
    config = keras_bert.BertConfig.of_size(args.size, vocabulary_size=size)
    encoder = keras_bert.bert(config)
    return keras_bert.Preset(config, encoder, tokenizer, encoder)


if __name__ == "__main__":
    recipe.run(main, Args)
