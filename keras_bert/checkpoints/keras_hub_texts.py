"""The JSON files and the vocabulary of a KerasHub preset: classes, numbers, casing."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import keras

from keras_bert.checkpoints.preset import Preset
from keras_bert.errors import InputError
from keras_bert.models import BertConfig
from keras_bert.tokenizers import WordPiece

VERSION = "0.32.0"  # of the KerasHub whose layout `describe` follows
VOCABULARY = "assets/tokenizer/vocabulary.txt"
# KerasHub's class -> its module, which is also the name of its objects.
MODULES = {
    "BertBackbone": "bert_backbone",
    "BertTextClassifier": "bert_text_classifier",
    "BertMaskedLM": "bert_masked_lm",
    "BertTokenizer": "bert_tokenizer",
    "BertTextClassifierPreprocessor": "bert_text_classifier_preprocessor",
    "BertMaskedLMPreprocessor": "bert_masked_lm_preprocessor",
}
PREPROCESSORS = (*list(MODULES)[-2:], "BertTextEmbedderPreprocessor", "BertPreprocessor")
# KerasNLP is KerasHub's former name.
PACKAGES = ("keras_hub", "keras_nlp")
# The numbers of `BertBackbone`, which have our names, and what its code has for the others.
NUMBERS = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim",
           "dropout", "max_sequence_length", "num_segments")  # fmt: skip
FIXED = {"activation": "gelu_tanh", "norm_epsilon": 1e-12}
# What `BertTokenizer` must say; it splits CJK, always.
TOKENIZER: dict[str, tuple[Any, ...]] = {
    "lowercase": (False, True),
    "strip_accents": (False, True),
    "split": (True,),
    "suffix_indicator": ("##",),
    "oov_token": ("[UNK]",),
}
MAX_CHARS_PER_WORD = 100  # bytes, in KerasHub


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        saver = "tokenizer" if path.name == "tokenizer.json" else "model"
        raise InputError(
            f"{path.parent} isn't a whole preset of KerasHub: it has no {path.name}, which "
            f"`{saver}.save_to_preset(folder)` writes."
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} can't be read as JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold an object. Received: {type(value).__name__}.")
    return value


def read_object(path: pathlib.Path, classes: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The class, one of `classes`, and the config of the object that a file describes.

    The name is compared with those and never looked up.
    """
    described = read_json(path)
    name, config = described.get("class_name"), described.get("config")
    registered = described.get("registered_name")
    if (
        not isinstance(name, str)
        or name not in classes
        or registered not in [f"{package}>{name}" for package in PACKAGES]
    ):
        raise InputError(
            f"{path} must describe KerasHub's {' or '.join(classes)}. Received: {name!r}, "
            f"registered as {registered!r}."
        )
    if not isinstance(config, dict):
        raise InputError(f"{path}: config must be an object. Received: {config!r}.")
    return name, config


def read_own(path: pathlib.Path) -> dict[str, Any]:
    """What `write` added to config.json: objects and labels, each empty where it's not there."""
    own: dict[str, Any] = {"config": {}, "head": {}, "tokenizer": {}, "settings": {}, "labels": []}
    added = read_json(path).get("keras_bert", {})
    for name, value in added.items() if isinstance(added, dict) else [("keras_bert", added)]:
        if type(value) is not type(own.get(name)):
            raise InputError(f"{path}: the key keras_bert can't have {name}={value!r}.")
        own[name] = value
    return own


def read_config(path: pathlib.Path, own: dict[str, Any]) -> BertConfig:
    """The numbers of a `config.json`."""
    described = read_object(path, ("BertBackbone",))[1]
    if unknown := sorted(set(described) - {*NUMBERS, "name", "trainable", "dtype"}):
        raise InputError(
            f"{path}: BertBackbone has {', '.join(unknown)}, which no KerasHub that we know has."
        )
    if missing := sorted(set(NUMBERS) - set(described)):
        raise InputError(f"{path} lacks {', '.join(missing)}.")
    numbers = {name: described[name] for name in NUMBERS}
    numbers |= FIXED | {"attention_dropout": described["dropout"]}
    try:
        return BertConfig.from_dict(numbers | own["config"])
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def read_tokenizer(
    folder: pathlib.Path, config: BertConfig, own: dict[str, Any]
) -> tuple[WordPiece, dict[str, Any]]:
    """The tokenizer, and the settings: the sequence length, and what `write` added."""
    path = folder / "tokenizer.json"
    described = read_object(path, ("BertTokenizer",))[1]
    for name, allowed in TOKENIZER.items():
        value = described.get(name)
        if value not in allowed or type(value) is not type(allowed[0]):
            wanted = " or ".join(map(repr, allowed))
            raise InputError(f"{path}: {name} must be {wanted}. Received: {value!r}.")
    longest = own["tokenizer"].get("max_chars_per_word", MAX_CHARS_PER_WORD)
    if type(longest) is not int or longest < 1:
        raise InputError(f"{folder / 'config.json'}: max_chars_per_word={longest!r} isn't above 0.")
    tokenizer = WordPiece(
        folder / VOCABULARY,
        described["lowercase"],
        described["strip_accents"],
        max_chars_per_word=longest,
    )
    if tokenizer.vocabulary_size > config.vocabulary_size:
        raise InputError(
            f"{folder / VOCABULARY}: its {tokenizer.vocabulary_size} tokens must fit the token "
            f"table of {config.vocabulary_size} rows."
        )
    settings: dict[str, Any] = {}
    path = folder / "preprocessor.json"
    if path.is_file():
        _, preprocessor = read_object(path, PREPROCESSORS)
        settings["max_sequence_length"] = preprocessor.get("sequence_length")
    settings |= own["settings"]
    longest = settings.get("max_sequence_length", config.max_sequence_length)
    if type(longest) is not int or not 3 <= longest <= config.max_sequence_length:
        raise InputError(
            f"{folder}: the sequence length must be from 3 to {config.max_sequence_length}, the "
            f"rows of the position table. Received: {longest!r}."
        )
    return tokenizer, settings


def describe(preset: Preset, task: str | None, own: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The JSON files by their names, of the class `task` on an encoder; `own` is `write`'s."""
    config, model = preset.config, preset.model
    backbone = _object("BertBackbone", **{name: getattr(config, name) for name in NUMBERS})
    casing = {name: allowed[0] for name, allowed in TOKENIZER.items()}
    casing |= {name: getattr(preset.tokenizer, name) for name in ("lowercase", "strip_accents")}
    tokenizer = _object("BertTokenizer", vocabulary=None, **casing)
    metadata = {
        "keras_version": keras.version(),
        "keras_hub_version": VERSION,
        "parameter_count": preset.encoder.count_params(),
        "tasks": ["MaskedLM", "TextClassifier", "TextEmbedder"],
    }
    files = {
        "config.json": backbone | {"keras_bert": own},
        "tokenizer.json": tokenizer,
        "metadata.json": metadata,
    }
    if task is None:
        return files
    preprocessor = _object(
        f"{task}Preprocessor",
        tokenizer=tokenizer,
        sequence_length=preset.settings.get("max_sequence_length", config.max_sequence_length),
        truncate="round_robin",
    )
    arguments: dict[str, Any] = {"backbone": backbone, "preprocessor": preprocessor}
    if task == "BertTextClassifier":
        arguments["num_classes"] = model.output["label"].shape[-1]
        arguments["activation"] = "linear"
        arguments["dropout"] = model.get_layer("label_dropout").rate
    return files | {"preprocessor.json": preprocessor, "task.json": _object(task, **arguments)}


def _object(class_name: str, **config: Any) -> dict[str, Any]:
    """The JSON of an object; without a dtype in it, KerasHub takes the session's."""
    module = MODULES[class_name]
    return {
        "module": f"keras_hub.src.models.bert.{module}",
        "class_name": class_name,
        "config": {"name": module} | config,
        "registered_name": f"{PACKAGES[0]}>{class_name}",
    }
