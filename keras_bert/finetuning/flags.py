"""The flags that all fine-tuning recipes have, and what they ask of a checkpoint and of devices."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Callable
from typing import Any, Literal

import keras

from keras_bert import recipe
from keras_bert.checkpoints import Preset
from keras_bert.errors import InputError
from keras_bert.training import describe_batch, strategy

# What `--search` tries: Devlin et al., 2018, appendix A.3.
GRID = {"learning_rate": (2e-5, 3e-5, 5e-5), "batch_size": (16, 32), "epochs": (2, 3, 4)}
SMOKE_EXAMPLES = 64  # of each file, with `--smoke`: to see that a command works


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    """The flags that all fine-tuning recipes have; a recipe's own class adds the others."""

    checkpoint: str
    """Checkpoint to start from: a preset, or a Hugging Face, Google or KerasHub folder."""
    train_file: str
    """File to train on; its format, as the other files', stands at the top of this help."""
    dev_file: str
    """File to choose the best epoch by, and to score it on."""
    output_dir: str
    """Where the preset, metrics, predictions and the report go."""
    test_file: str = ""
    """File to predict at the end, and to score if it has the answers."""
    max_sequence_length: int = 128
    """Tokens of a sequence, [CLS] and [SEP] included."""
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
    """Draw the top K layers, the pooler and the head anew."""
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
    """Keras's dtype policy in training; the preset that's left predicts in float32."""
    accumulate: int = 1
    """Micro-batches an update on each replica: less memory, the same update."""
    steps_per_execution: int = 1
    """Updates a call of the compiled step: more saves time on a TPU."""
    smoke: bool = False
    """Try the command out: one epoch on the first 64 rows of each file."""
    overwrite: bool = False
    """Replace the run in `output_dir`."""


def set_up(args: Any) -> tuple[Any, Any]:
    """Checks the common flags and chooses devices and precision; writes nothing.

    Returns:
        The arguments of this host (with `--smoke`: for one epoch of one run), and the strategy.

    Raises:
        InputError: a flag's value can't be, or the output folder may not be used.
    """
    args = recipe.on_this_host(args)
    if args.smoke:
        args = dataclasses.replace(args, epochs=1, seeds=1, search=False)
    recipe.check_output_dir(args.output_dir, overwrite=args.overwrite)
    recipe.check_training_numbers(args)
    for name in ("train_file", "dev_file"):
        if not getattr(args, name):
            raise InputError(f"--{name.replace('_', '-')} is empty: name a file.")
    for name, least in (
        ("epochs", 1),
        ("seeds", 1),
        ("patience", 0),
        ("freeze_layers", 0),
        ("reinitialize_layers", 0),
    ):
        if getattr(args, name) < least:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} must be at least {least}. Received: {getattr(args, name)}.")
    if args.seed + args.seeds > 2**32:
        raise InputError(
            f"--seed and --seeds must end at 2**32 - 1. Received: {args.seed} and {args.seeds}."
        )
    if not 0 < args.layer_decay <= 1:
        raise InputError(
            f"--layer-decay must be above 0 and at most 1. Received: {args.layer_decay}."
        )
    devices = strategy(args.strategy, args.tpu or None)
    for each in settings_to_try(args):
        line = describe_batch(devices, each.batch_size, args.accumulate)
    print(line)
    keras.utils.set_random_seed(args.seed)
    keras.config.set_dtype_policy(args.precision)
    return args, devices


def start_run(args: Any, batches: Callable[[Any], Any]) -> pathlib.Path:
    """The run's folder, emptied of an old run's results with `--overwrite`.

    The batches are made once before, so that a training file that nothing can be learned from
    costs nobody an old run.

    Raises:
        InputError: They can't be made; the sentence names the file.
    """
    try:
        batches(args)
    except InputError as error:
        raise InputError(f"{args.train_file}: {error}") from None
    return recipe.start_run(args.output_dir, args, overwrite=args.overwrite)


def settings_to_try(args: Any) -> list[Any]:
    """The arguments of each run of a search; without `--search` the one given."""
    if not args.search:
        return [args]
    grid = itertools.product(*GRID.values())
    return [dataclasses.replace(args, **dict(zip(GRID, each, strict=True))) for each in grid]


def check_lengths(args: Any, base: Preset, least: int = 3) -> None:
    """Refuses flags that the checkpoint has no positions or layers for.

    Args:
        args: The run's.
        base: The checkpoint.
        least: Tokens that a sequence must have room for: of pairs 5, one of each text.
    """
    longest = base.config.max_sequence_length
    if not least <= args.max_sequence_length <= longest:
        raise InputError(
            f"--max-sequence-length is {args.max_sequence_length}; it must be at least {least}, "
            f"and the position table of {args.checkpoint} ends at {longest}."
        )
    num_layers = base.config.num_layers
    if args.freeze_layers + args.reinitialize_layers > num_layers:
        raise InputError(
            f"--freeze-layers and --reinitialize-layers must be at most {num_layers} together, the "
            f"layers of {args.checkpoint}. Received: {args.freeze_layers} and "
            f"{args.reinitialize_layers}."
        )


def needs_one_shape(args: Any, devices: Any) -> bool:
    """Whether batches should all have one shape: each is compiled, or replicas want equal parts.

    TensorFlow's graphs on a CPU, and torch, take any shape at no cost.
    """
    backend = keras.backend.backend()
    if backend == "jax" or devices.num_replicas_in_sync > 1 or args.strategy == "tpu":
        return True
    return backend == "tensorflow" and bool(keras.distribution.list_devices("gpu"))
