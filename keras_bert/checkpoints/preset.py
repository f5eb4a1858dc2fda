"""Our own checkpoint, a folder of three files that can be read by eye or with h5py.

    config.json   architecture and its numbers, task, labels, tokenizer and other settings
    vocab.txt     a token a line
    weights.h5    every weight under its path, such as `block_0/attention/query/kernel`

Nothing in it can run code: the model is built from the numbers.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import h5py
import keras
import numpy as np

from keras_bert import tasks
from keras_bert.checkpoints.h5_files import read_h5
from keras_bert.checkpoints.parity import Report
from keras_bert.errors import InputError
from keras_bert.files import holds, replacing, write_json
from keras_bert.layers import EncoderBlock
from keras_bert.models import ARCHITECTURES
from keras_bert.tokenizers import WordPiece


@dataclasses.dataclass(frozen=True)
class Preset:
    """A model with all that belongs to it.

    Attributes:
        config: The architecture's numbers.
        encoder: text to vectors.
        tokenizer: How text becomes the encoder's ids.
        model: The task's model on this encoder, or the encoder itself.
        labels: Class names in the order of the logits.
        settings: What predictions need besides: `max_sequence_length`; a classifier's `truncate`,
            `window_stride`, `pair`, `symmetric`, `multi_label` and `threshold`; an answer's
            `stride`, `max_answer_length` and `no_answer_threshold`; an embedding's `pooling` and
            `normalize`.

    Raises:
        ValueError: the tokenizer has tokens for which the encoder's table has no rows; the labels
            aren't a name for each class; `max_sequence_length` isn't from 3 to the rows of the
            table of positions.
    """

    config: Any
    encoder: keras.Model
    tokenizer: WordPiece
    model: keras.Model
    labels: tuple[str, ...] = ()
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        # Rows may be more: tables are padded to a multiple of 8 for speed.
        tokens, rows = self.tokenizer.vocabulary_size, self.config.vocabulary_size
        if tokens > rows:
            raise ValueError(
                f"the vocabulary holds {tokens} tokens, and the token table {rows} rows"
            )
        if not all(isinstance(label, str) for label in self.labels):
            raise ValueError(f"labels must be strings. Received: {self.labels!r}")
        if self.labels and self.model.name in CLASSES:
            num_classes = self.model.output[CLASSES[self.model.name]].shape[-1]
            if len(self.labels) != num_classes:
                raise ValueError(f"{len(self.labels)} labels for {num_classes} classes")
        longest: Any = self.max_sequence_length
        if type(longest) is not int or not 3 <= longest <= self.config.max_sequence_length:
            raise ValueError(f"settings have max_sequence_length={longest!r}")

    @property
    def max_sequence_length(self) -> int:
        """Tokens of the longest sequence that it's asked with: the setting, or the table's rows."""
        return self.settings.get("max_sequence_length", self.config.max_sequence_length)


CONFIG, VOCABULARY, WEIGHTS = FILES = ("config.json", "vocab.txt", "weights.h5")
FORMAT = 1


def write(preset: Preset, folder: str | os.PathLike[str]) -> None:
    """Writes the preset's folder; an older preset there is replaced once the new one is whole.

    Raises:
        InputError: the folder holds something else.
    """
    folder = pathlib.Path(folder)
    if folder.exists() and not holds(folder, FILES, [WEIGHTS]):
        raise InputError(f"{folder} exists and isn't a preset: choose another folder.")
    with replacing(folder) as unfinished:
        write_json(unfinished / CONFIG, _describe(preset))
        preset.tokenizer.save_vocabulary(unfinished / VOCABULARY)
        _write_weights(preset.model, unfinished / WEIGHTS)


def read(folder: str | os.PathLike[str]) -> Preset:
    """Reads a preset's folder.

    Raises:
        InputError: a file is missing or damaged; a number or a task is unknown; a weight is
            missing, unexpected or of another shape. The message names the file and the thing.
    """
    folder = pathlib.Path(folder)
    for name in FILES:
        if not (folder / name).is_file():
            raise InputError(f"{folder} isn't a preset: it has no {name}.")
    path = folder / CONFIG
    tensors, _ = read_h5(folder / WEIGHTS, dropped={})
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        task, arguments = described["task"]["name"], described["task"]["arguments"]
        if described["format"] != FORMAT:
            raise ValueError(f"format {described['format']!r} is unknown")
        if not isinstance(described["labels"], list):
            raise ValueError(f"labels must be a list, not {described['labels']!r}")
        config_class, _ = ARCHITECTURES[described["architecture"]]
        config = config_class.from_dict(described["config"])
        tokenizer = WordPiece(folder / VOCABULARY, **described["tokenizer"])
        _check_sizes(described["config"] | arguments, tensors)
        if not isinstance(arguments.get("activation", ""), str):
            raise ValueError(f"activation must be a name, not {arguments['activation']!r}")
        encoder, model = build(config, task, arguments)
        preset = Preset(
            config=config,
            encoder=encoder,
            tokenizer=tokenizer,
            model=model,
            labels=tuple(str(label) for label in described["labels"]),
            settings=dict(described["settings"]),
        )
        _check(preset, described)
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} doesn't describe a preset: {error!r}.") from error
    _assign(model, tensors, folder / WEIGHTS)
    return preset


# A task model's name -> the function that builds it.
TASKS: dict[str, Callable[..., keras.Model]] = {
    "pretraining": tasks.pretraining,
    "masked_lm": tasks.masked_lm,
    "next_sentence": tasks.next_sentence,
    "text_classifier": tasks.text_classifier,
    "token_classifier": tasks.token_classifier,
    "span_classifier": tasks.span_classifier,
    "multiple_choice": tasks.multiple_choice,
}
# A task with classes -> its output; the dropout before it is called `<output>_dropout`.
CLASSES = {"text_classifier": "label", "token_classifier": "labels"}


def build(config: Any, task: str, arguments: dict[str, Any]) -> tuple[keras.Model, keras.Model]:
    """Builds a new (encoder, model) from numbers and from what `task_of` says."""
    build_encoder = {config_class: function for config_class, function in ARCHITECTURES.values()}
    encoder = build_encoder[type(config)](config)
    return encoder, encoder if task == "encoder" else TASKS[task](encoder, **arguments)


def task_of(preset: Preset) -> tuple[str, dict[str, Any]]:
    """The name of the preset's task, "encoder" or one of `TASKS`, and its function's arguments.

    Raises:
        ValueError: the model is neither.
    """
    model = preset.model
    if model is preset.encoder:
        return "encoder", {}
    output = CLASSES.get(model.name, "label" if model.name == "multiple_choice" else None)
    layers = {layer.name: layer for layer in model.layers}
    if model.name not in TASKS or (output and f"{output}_dropout" not in layers):
        raise ValueError(
            f"`preset.model` must be an encoder or one of {', '.join(TASKS)}, as "
            f"`keras_bert.tasks` builds them. Received: a model named {model.name!r}."
        )
    arguments: dict[str, Any] = {}
    if output:
        arguments["dropout"] = layers[f"{output}_dropout"].rate
    if model.name in CLASSES:
        arguments["num_classes"] = model.output[output].shape[-1]
    if "crf" in layers:
        arguments["crf"] = True
    if model.name == "masked_lm" and has_own_head(preset):
        head = layers["masked_lm_head"]
        arguments["activation"] = keras.activations.serialize(head.activation).split(">")[-1]
        arguments["norm_epsilon"] = head.norm_epsilon
    return model.name, arguments


def has_own_head(preset: Preset) -> bool:
    """Whether the numbers of a masked-LM head aren't those of the encoder."""
    if "masked_lm_head" not in [layer.name for layer in preset.model.layers]:
        return False
    head = preset.model.get_layer("masked_lm_head")
    block = [layer for layer in preset.encoder.layers if isinstance(layer, EncoderBlock)][-1]
    return (head.activation, head.norm_epsilon) != (block.activation, block.norm_epsilon)


def read_with_report(folder: str | os.PathLike[str]) -> tuple[Preset, Report]:
    """`read`, and the account of it: every weight is there, or `read` refuses the folder."""
    preset = read(folder)
    paths = [weight.path for weight in preset.model.weights]
    source = str(pathlib.Path(folder) / WEIGHTS)
    return preset, Report(source=source, read=paths, assigned=paths)


def _check(preset: Preset, described: dict[str, Any]) -> None:
    """What belongs together must agree."""
    if preset.tokenizer.vocabulary_hash != described["vocabulary_hash"]:
        raise ValueError("vocab.txt isn't the vocabulary that the preset was saved with")


def _check_sizes(numbers: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Stops before memory is taken for a number that the weights can't have.

    Whatever the architecture, a whole number is at most an axis of some weight or, as the
    number of layers, the number of weights.
    """
    largest = max([len(tensors), *(axis for tensor in tensors.values() for axis in tensor.shape)])
    for name, number in numbers.items():
        if type(number) is int and number > largest:
            raise ValueError(f"{name}={number}, and no weight in {WEIGHTS} is as large")


def _describe(preset: Preset) -> dict[str, Any]:
    names = {config_class: name for name, (config_class, _) in ARCHITECTURES.items()}
    task, arguments = task_of(preset)
    return {
        "format": FORMAT,
        "architecture": names[type(preset.config)],
        "config": dataclasses.asdict(preset.config),
        "task": {"name": task, "arguments": arguments},
        "labels": list(preset.labels),
        "tokenizer": preset.tokenizer.get_config(),
        "vocabulary_hash": preset.tokenizer.vocabulary_hash,
        "settings": preset.settings,
    }


def _write_weights(model: keras.Model, path: pathlib.Path) -> None:
    with h5py.File(path, "w") as file:
        for weight in model.weights:
            file[weight.path] = keras.ops.convert_to_numpy(weight.value).astype(np.float32)


def _assign(model: keras.Model, tensors: dict[str, np.ndarray], path: pathlib.Path) -> None:
    expected = {weight.path: weight for weight in model.weights}
    for name in sorted(set(expected) ^ set(tensors)):
        fault = "lacks" if name in expected else "holds the unexpected"
        raise InputError(f"{path} {fault} weight {name}: it belongs to another model.")
    for name, weight in expected.items():
        if tensors[name].shape != tuple(weight.shape):
            raise InputError(
                f"{path}: weight {name} must be floats of the shape {tuple(weight.shape)}. "
                f"Received: {tensors[name].dtype}, {tensors[name].shape}."
            )
        if not np.isfinite(tensors[name].astype(np.float32)).all():
            raise InputError(f"{path}: weight {name} holds a value that is no finite number.")
    for name, weight in expected.items():
        weight.assign(tensors[name])
