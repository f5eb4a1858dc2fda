"""What the pretraining recipe is made of: its data by phases, its fits, its scores and report.

`args` is the recipe's own dataclass, whose flags are read from it by name.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_bert import recipe, remote
from keras_bert.checkpoints import Preset
from keras_bert.data import batches, google_records, records
from keras_bert.data.waiting import Waiting, counted
from keras_bert.errors import InputError
from keras_bert.evaluation import (
    evaluate_pretraining,
    masked_examples,
    token_counts,
    unigram_cross_entropy,
)
from keras_bert.files import replacing, write_json
from keras_bert.report import Examples, Section, Table, history_curves, write_report
from keras_bert.training import callbacks
from keras_bert.training.throughput import pretraining_throughput
from keras_bert.training.updates import Phase, fits, plan_phases

EVALUATION_BATCH = 32
COUNTED_BATCHES = 4000  # of EVALUATION_BATCH examples, for the unigram model
SCORES_NOTE = (
    "_mask, _kept, _random: positions that show [MASK], the true token, another token. "
    "unigram: what guessing by frequency scores at the [MASK] positions."
)


@dataclasses.dataclass(frozen=True)
class Part:
    """A phase and its data.

    Attributes:
        phase: Its updates.
        folder: Of the records to train on.
        manifest: Of `folder`; of Google's records, which have none, the length alone.
        read: `start` -> endless batches of them, from that one on.
        dev_folder: Of the records to evaluate on; empty: none.
        dev: Their batches, for `fit`; packed, if those to train on are.
        one_a_row: Batches that aren't packed, to score: of `dev_folder`, or else of `folder`.
    """

    phase: Phase
    folder: str
    manifest: dict[str, Any]
    read: Callable[..., Any]
    dev_folder: str
    dev: Any
    one_a_row: Any

    def batches(self, update: int, vocabulary_size: int | None = None) -> Any:
        """The batches from an update of the run on, whose ids are checked against the model's."""
        return self.read(start=update - self.phase.start, vocabulary_size=vocabulary_size)


def read_parts(args: Any, updates: int, every: int) -> list[Part]:
    """The phases, each with the folders of its length.

    Args:
        args: `data`, `dev_data`, `phases`, `batch_size`, `masking`, `row_length`, `seed`, `smoke`.
        updates: Of the run.
        every: Updates of an epoch.

    Raises:
        InputError: a folder isn't complete, a length is missing, or `phases` can't be read.
    """
    manifests = {folder: read_manifest(folder) for folder in (*args.data, *args.dev_data)}
    length_of = {name: m["settings"]["max_sequence_length"] for name, m in manifests.items()}
    lengths = [length_of[folder] for folder in args.data]
    shares = args.phases
    if args.smoke:
        shares = ",".join(f"{length}:{1 / len(lengths)}" for length in lengths)
    read = functools.partial(batches.pretraining, seed=args.seed, masking=args.masking)
    evaluation = functools.partial(read, batch_size=EVALUATION_BATCH, training=False)
    row_length = args.row_length or None
    parts = []
    for phase in plan_phases(shares, lengths, updates, every):
        [folder] = (name for name in args.data if length_of[name] == phase.length)
        dev_folder = next((name for name in args.dev_data if length_of[name] == phase.length), "")
        if args.dev_data and not dev_folder:
            raise InputError(
                f"--dev-data has no folder of examples of length {phase.length}: add one, or "
                "leave --dev-data out."
            )
        part = Part(
            phase,
            folder,
            manifests[folder],
            functools.partial(read, folder, args.batch_size, row_length=row_length),
            dev_folder=dev_folder,
            dev=validation(evaluation(dev_folder, row_length=row_length)) if dev_folder else None,
            one_a_row=evaluation(dev_folder or folder),
        )
        parts.append(part)
    dev_lengths = [length_of[folder] for folder in args.dev_data]
    for folder, length in zip(args.dev_data, dev_lengths, strict=True):
        if dev_lengths.count(length) > 1 or length not in lengths:
            raise InputError(
                f"--dev-data must hold one folder for each length of --data. Received: {folder} "
                f"of length {length}, and lengths {', '.join(map(str, lengths))} in --data."
            )
    for part in parts:
        part.batches(part.phase.start)  # refuses what can't be, while nothing is replaced yet
    return parts


def validation(dev: Any) -> Any:
    """Batches for `fit`: as many as it's told, of one shape, which any number of devices share."""
    return batches.filled(counted(dev), EVALUATION_BATCH)


def read_manifest(folder: str) -> dict[str, Any]:
    """A folder's manifest; of Google's records, what they tell of themselves."""
    if google_records.are_here(folder):
        return {"settings": google_records.read_sizes(folder)}
    return records.read_manifest(folder)


def keep_manifests(path: pathlib.Path, parts: Sequence[Part]) -> None:
    """Writes how the run's data was made, or, in a resumed run, refuses other data.

    Raises:
        InputError: naming the folder that isn't what the run began with.
    """
    folders = [name for part in parts for name in (part.folder, part.dev_folder) if name]
    manifests = {name: read_manifest(name) for name in folders}
    if path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        for name, manifest in manifests.items():
            if stored.get(name) != json.loads(json.dumps(manifest)):
                raise InputError(
                    f"{name} holds other data than this run was begun with ({path}): restore it, "
                    "or choose another --output-dir."
                )
    write_json(path, manifests)


def check_data(args: Any, preset: Preset) -> None:
    """Refuses data that the model can't be trained on, saying which setting differs."""
    config = preset.config
    for folder in (*args.data, *args.dev_data):
        manifest = read_manifest(folder)
        if "tokenizer" in manifest:
            records.check_manifest(
                manifest,
                folder,
                tokenizer=preset.tokenizer,
                vocabulary_size=config.vocabulary_size,
                max_sequence_length=config.max_sequence_length,
            )
        elif manifest["settings"]["max_sequence_length"] > config.max_sequence_length:
            raise InputError(
                f"{folder}: its examples have {manifest['settings']['max_sequence_length']} "
                f"tokens, and the model's position table ends at {config.max_sequence_length}."
            )


def restore(model: keras.Model, folder: pathlib.Path, parts: list[Part]) -> keras.Model:
    """Puts the run's last checkpoint into the model, if there is one."""
    checkpoint = callbacks.latest(folder / "checkpoints")
    if checkpoint is not None:
        callbacks.restore(model, checkpoint, batch=next(iter(parts[0].batches(0))))
    return model


def train(
    model: keras.Model,
    config: Any,
    part: Part,
    args: Any,
    folder: pathlib.Path,
    updates: int,
    every: int,
    stop: callbacks.StopSignals,
) -> None:
    """The updates of a phase that are still to be made.

    Args:
        model: Compiled, in the state after `updates_done(model)` updates.
        config: Of its encoder.
        part: The phase.
        args: `save_every`, `keep`, `strategy`.
        folder: Of the run.
        updates: Of the run, all phases together.
        every: Updates of an epoch.
        stop: Asked before each update.

    Raises:
        Stopped, NonFiniteError: See `callbacks`.
        InputError: a record is damaged, or holds an id outside the vocabulary.
    """
    # Another length is another program. Without this, TensorFlow would make one for all
    # lengths, and a resumed run another, whose sums are in another order.
    model.make_train_function(force=True)
    model.make_test_function(force=True)
    inputs = part.batches(part.phase.start).element_spec[0]
    replicas = 1 if args.strategy == "one" else model.distribute_strategy.num_replicas_in_sync
    rows, length = inputs["token_ids"].shape
    masked = inputs["mask_positions"].shape[1]
    throughput = pretraining_throughput(config, rows, length, masked, replicas)
    waiting = Waiting() if args.strategy == "one" else None
    bar = callbacks.ProgressBar(updates, f"Pretraining at {part.phase.length}", throughput)
    told = [
        callbacks.StopAtNonFinite(),
        bar,
        callbacks.History(
            folder / "history.csv",
            throughput,
            waited=(lambda: waiting.seconds) if waiting else None,
            seconds_before=callbacks.seconds_before(callbacks.latest(folder / "checkpoints")),
        ),
        callbacks.TensorBoard(folder / "logs"),
        callbacks.Checkpoints(
            folder / "checkpoints",
            args.save_every,
            args.keep,
            monitor="masked_lm_loss" if part.dev is None else "val_masked_lm_loss",
            since=part.phase.start,
            within_epochs=True,
            stop=stop,
            after_save=remote.copy_out,
        ),
    ]
    try:
        for done, first, last, steps in fits(part.phase, callbacks.updates_done(model), every):
            data = part.batches(done, config.vocabulary_size).take((last - first) * steps)
            model.fit(
                waiting.watch(data) if waiting else data,
                initial_epoch=first,
                epochs=last,
                steps_per_epoch=steps,
                validation_data=part.dev,
                shuffle=False,
                verbose=0,
                callbacks=told,
            )
    except records.ReadError as error:
        found = records.explained(error, part.folder)
        if found is None:
            raise
        raise found from error
    finally:
        bar.close()


def explain(
    error: callbacks.NonFiniteError,
    begin: Callable[[], keras.Model],
    parts: list[Part],
    folder: pathlib.Path,
) -> str:
    """Says where the loss first broke, and keeps what's needed to repeat it.

    Args:
        error: What ended training.
        begin: Returns the compiled model in its initial state.
        parts: The phases.
        folder: Of the run; `checkpoints/non-finite` gets the batch and the state before it.
    """
    checkpoint = callbacks.latest(folder / "checkpoints")
    kept = f"The last good checkpoint is {checkpoint}." if checkpoint else "No checkpoint yet."
    print(f"The loss isn't finite at update {error.update}: training again up to there.")
    part = next(part for part in parts if error.update <= part.phase.end)
    found = callbacks.find_origin(
        lambda: restore(begin(), folder, parts), part.batches, error.update
    )
    if found is None:
        return (
            f"the loss wasn't finite at update {error.update}, but is so when trained again: "
            f"leave --deterministic on, or suspect the hardware. {kept}"
        )
    origin, model = found
    with replacing(folder / "checkpoints" / "non-finite") as unfinished:
        callbacks.save_batch(unfinished / "batch.npz", origin.batch)
        state = {"update": origin.update - 1, "optimizer": type(model.optimizer).__name__}
        callbacks.write_checkpoint(model, unfinished, state)
    return (
        f"the loss isn't finite. At {origin}. {kept} "
        f"{folder / 'checkpoints' / 'non-finite'} has the batch and the weights before it."
    )


def evaluate(preset: Preset, part: Part) -> dict[str, float]:
    """Scores on the dev data, and what guessing by frequency would score there."""
    works = None
    if part.dev_folder and "tokenizer" in read_manifest(part.dev_folder):
        examples = records.read_examples(part.dev_folder).as_numpy_iterator()
        works = np.stack([example["works"] for example in examples])
    mask_id = preset.tokenizer.mask_id
    scores = evaluate_pretraining(preset.model, part.one_a_row, works, mask_id)
    texts = batches.pretraining(part.folder, EVALUATION_BATCH, training=False)
    counts = token_counts(texts.take(COUNTED_BATCHES), preset.config.vocabulary_size)
    special_ids = preset.tokenizer.special_ids
    unigram = unigram_cross_entropy(counts, part.one_a_row, mask_id, special_ids)
    if unigram is not None:
        scores["unigram_loss_mask"] = unigram
    return {name: round(float(score), 4) for name, score in scores.items()}


def write_run_report(
    path: str | os.PathLike[str], args: Any, preset: Preset, metrics: dict[str, Any], part: Part
) -> None:
    """Curves, scores and a few masked examples with the model's guesses."""
    history = callbacks.read_history(pathlib.Path(path).with_name("history.csv"))
    curves = [
        ("Loss", "loss", "nats"),
        ("Accuracy", "accuracy", "share"),
        ("Learning rate", "learning_rate", "rate"),
        ("Throughput", "tokens_per_second", "tokens a second"),
        ("Arithmetic", "gflops_per_second", "GFLOP a second"),
        ("Use of the hardware", "flops_utilisation", "share of its peak"),
        ("Waiting for data", "data_wait", "share of the time"),
    ]
    rows = masked_examples(preset.model, part.one_a_row, preset.tokenizer)
    sections: list[Section] = [
        Table("Scores", ("name", "value"), list(metrics.items()), note=SCORES_NOTE),
        *(
            history_curves(title, history, ending, label)
            for title, ending, label in curves
            if any(name.endswith(ending) for name in history)
        ),
        Examples("Masked examples with the model's guesses", rows),
        Table("Arguments", ("name", "value"), list(dataclasses.asdict(args).items())),
    ]
    write_report(path, "Pretraining", sections, recipe.command())
