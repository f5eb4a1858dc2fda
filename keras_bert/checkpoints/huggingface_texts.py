"""The JSON files and the vocabulary of a Hugging Face folder: numbers, labels, casing."""

from __future__ import annotations

import collections
import json
import math
import pathlib
from typing import Any

from keras_bert.errors import InputError
from keras_bert.models import BertConfig
from keras_bert.tokenizers import SPECIAL_TOKENS, WordPiece

# Hugging Face's number -> ours and, for those that old folders leave out, its default.
NUMBERS: dict[str, tuple[str, float | None]] = {
    "vocab_size": ("vocabulary_size", None),
    "hidden_size": ("hidden_dim", None),
    "num_hidden_layers": ("num_layers", None),
    "num_attention_heads": ("num_heads", None),
    "intermediate_size": ("intermediate_dim", None),
    "max_position_embeddings": ("max_sequence_length", None),
    "type_vocab_size": ("num_segments", None),
    "hidden_dropout_prob": ("dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu6": "relu6",
    "silu": "silu",
    "swish": "silu",
    "mish": "mish",
    "tanh": "tanh",
}


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path.parent} isn't a Hugging Face folder: no {path.name}.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} can't be read as JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold an object. Received: {type(value).__name__}.")
    return value


def read_config(described: dict[str, Any], path: pathlib.Path) -> BertConfig:
    """The numbers of a `config.json`; what BERT can't follow in it is an InputError."""
    for key, only in (("model_type", "bert"), ("position_embedding_type", "absolute"),
                      ("is_decoder", False), ("add_cross_attention", False)):  # fmt: skip
        if described.get(key, only) != only:
            raise InputError(f"{path}: {key} must be {only!r}. Received: {described[key]!r}.")
    activation = described.get("hidden_act")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise InputError(
            f"{path}: hidden_act must be one of {', '.join(ACTIVATIONS)}. Received: {activation!r}."
        )
    numbers: dict[str, Any] = {"activation": ACTIVATIONS[activation]}
    for theirs, (ours, default) in NUMBERS.items():
        value = described.get(theirs, default)
        if type(value) is not int and not (type(value) is float and math.isfinite(value)):
            raise InputError(f"{path}: {theirs} must be a number. Received: {value!r}.")
        numbers[ours] = value
    try:
        return BertConfig(**numbers)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def read_classifier_dropout(described: dict[str, Any], path: pathlib.Path) -> float:
    """The dropout before a classifier, which is the encoder's own unless stated."""
    rate = described.get("classifier_dropout")
    rate = described.get("hidden_dropout_prob", 0.1) if rate is None else rate
    if type(rate) not in (int, float) or not 0 <= rate < 1:
        raise InputError(f"{path}: classifier_dropout must be in [0, 1). Received: {rate!r}.")
    return rate


def describe_config(config: BertConfig) -> dict[str, Any]:
    """The numbers under Hugging Face's names."""
    activation = {"gelu_tanh": "gelu_new"}.get(config.activation, config.activation)
    if activation not in ACTIVATIONS:
        raise ValueError(
            "`config.activation` must be one that Hugging Face has. "
            f"Received: activation={config.activation!r}."
        )
    numbers = {theirs: getattr(config, ours) for theirs, (ours, _) in NUMBERS.items()}
    return numbers | {"hidden_act": activation, "position_embedding_type": "absolute"}


def read_labels(names: Any, count: int, path: pathlib.Path) -> tuple[str, ...]:
    """`id2label`'s names in order; Hugging Face's placeholders where it has no names.

    The one number of a regression has no name.
    """
    placeholders = tuple(f"LABEL_{i}" for i in range(count)) if count > 1 else ()
    if names is None:
        return placeholders
    if not isinstance(names, dict) or not all(isinstance(x, str) for x in names.values()):
        raise InputError(f"{path}: id2label must map numbers to names. Received: {names!r}.")
    # Old versions wrote two placeholders whatever the number of classes was.
    if all(name.startswith("LABEL_") for name in names.values()):
        return placeholders
    if set(names) == {str(i) for i in range(count)}:
        return tuple(names[str(i)] for i in range(count))
    raise InputError(
        f"{path}: id2label must name the {count} classes of the classifier, 0 to {count - 1}. "
        f"Received: {names!r}."
    )


def read_tokenizer(folder: pathlib.Path, config: BertConfig) -> tuple[WordPiece, dict[str, Any]]:
    """The tokenizer, and the settings that its files hold."""
    path = folder / "tokenizer_config.json"
    stated = read_json(path) if path.is_file() else {}
    vocabulary: Any = folder / "vocab.txt"
    fast = folder / "tokenizer.json"
    if fast.is_file() and not (vocabulary.is_file() and "do_lower_case" in stated):
        tokens, casing = _read_fast_tokenizer(fast, config.vocabulary_size)
        stated = casing | stated
        if not vocabulary.is_file():
            vocabulary = tokens
    casing = {}
    for theirs, ours, allowed in (
        ("do_lower_case", "lowercase", (True, False)),
        ("strip_accents", "strip_accents", (True, False, None)),
        ("tokenize_chinese_chars", "split_cjk", (True, False)),
    ):
        if theirs not in stated:
            continue
        if not any(stated[theirs] is value for value in allowed):
            raise InputError(
                f"{path}: {theirs} must be one of {allowed}. Received: {stated[theirs]!r}."
            )
        casing[ours] = stated[theirs]
    tokenizer = WordPiece(vocabulary, max_chars_per_word=100, **casing)
    if tokenizer.vocabulary_size > config.vocabulary_size:
        raise InputError(
            f"{folder}: the vocabulary of {tokenizer.vocabulary_size} tokens must fit the token "
            f"table of {config.vocabulary_size} rows."
        )
    longest = stated.get("model_max_length")
    if type(longest) is int and 0 < longest < config.max_sequence_length:
        return tokenizer, {"max_sequence_length": longest}
    return tokenizer, {}


def _read_fast_tokenizer(path: pathlib.Path, rows: int) -> tuple[list[str], dict[str, Any]]:
    """The tokens by id, and the casing under the names of `tokenizer_config.json`."""
    described = read_json(path)
    model, normalizer = described.get("model"), described.get("normalizer")
    ids = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(ids, dict) or not all(type(i) is int and 0 <= i < rows for i in ids.values()):
        raise InputError(f"{path}: model.vocab must give tokens the ids 0 to {rows - 1}.")
    if len(set(ids.values())) < len(ids):
        twice = next(i for i, n in collections.Counter(ids.values()).items() if n > 1)
        tokens = [token for token, i in ids.items() if i == twice]
        raise InputError(
            f"{path}: model.vocab gives {tokens[0]!r} and {tokens[1]!r} the id {twice}."
        )
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        raise InputError(f"{path}: normalizer must be a BertNormalizer. Received: {normalizer!r}.")
    tokens = [""] * (max(ids.values(), default=-1) + 1)
    for token, i in ids.items():
        tokens[i] = token
    names = {
        "lowercase": "do_lower_case",
        "strip_accents": "strip_accents",
        "handle_chinese_chars": "tokenize_chinese_chars",
    }
    return tokens, {theirs: normalizer[n] for n, theirs in names.items() if n in normalizer}


def describe_tokenizer(tokenizer: WordPiece) -> tuple[dict[str, Any], dict[str, str]]:
    """The casing under the names of `tokenizer_config.json`, and the special tokens."""
    casing = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": tokenizer.lowercase,
        "strip_accents": tokenizer.strip_accents,
        "tokenize_chinese_chars": tokenizer.split_cjk,
    }
    special = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
    return casing, special
