"""Google's own checkpoints, of TensorFlow 1, in both directions.

    bert_config.json   the architecture's numbers
    vocab.txt          a token a line
    bert_model.ckpt.*  the weights under the names of https://github.com/google-research/bert

What such a folder leaves open is settled so:

- **GELU.** The word "gelu" stood for the erf form until February 2019 and for the tanh
  approximation since; the folder doesn't say which. It's read as erf: that's the paper's,
  what the 2018 releases were trained with, and how Hugging Face's copies of all releases run.
  "gelu_new" is read and written as the approximation; Google's code refuses that word, which
  is better than 5e-4 of silent difference.
- **Layer norm epsilon** is the constant 1e-12 of that code, unless the config says
  `layer_norm_eps`. Weights that need another can't be written: nobody would notice the
  other numbers that Google's code would give.
- **Casing** is a flag of Google's scripts. See `read_with_report` for where it's taken from.
- **Labels** live in Google's scripts too; they're "0", "1", ... here.

What `write` knows beyond that (labels, casing, settings) goes into one more key of
bert_config.json, "keras_bert", which `read` takes at its word and Google's code ignores.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_bert import tasks
from keras_bert.checkpoints import parity
from keras_bert.checkpoints.preset import Preset
from keras_bert.errors import InputError
from keras_bert.files import holds, replacing, write_json
from keras_bert.models import BertConfig, bert
from keras_bert.tokenizers import WordPiece

CHECKPOINT = "bert_model.ckpt"
FILES = {"bert_config.json", "vocab.txt", "checkpoint", CHECKPOINT}
FILES |= {f"{CHECKPOINT}.{part}" for part in ("index", "data-00000-of-00001", "meta")}
NORM_EPSILON = 1e-12

# Google's word -> ours.
NUMBERS = {
    "vocab_size": "vocabulary_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_size": "hidden_dim",
    "intermediate_size": "intermediate_dim",
    "max_position_embeddings": "max_sequence_length",
    "type_vocab_size": "num_segments",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "initializer_range",
}
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh"}
ACTIVATIONS |= {word: word for word in ("relu", "tanh", "linear")}
# Our weight or layer -> Google's. Leaves (kernel, bias, gamma, beta) are called the same.
NAMES = {
    "token_embedding/embeddings": "bert/embeddings/word_embeddings",
    "position_embedding/embeddings": "bert/embeddings/position_embeddings",
    "segment_embedding/embeddings": "bert/embeddings/token_type_embeddings",
    "embedding_norm": "bert/embeddings/LayerNorm",
    "pooler": "bert/pooler/dense",
    "masked_lm_head/dense": "cls/predictions/transform/dense",
    "masked_lm_head/norm": "cls/predictions/transform/LayerNorm",
    "masked_lm/bias": "cls/predictions/output_bias",
    "next_sentence/kernel": "cls/seq_relationship/output_weights",
    "next_sentence/bias": "cls/seq_relationship/output_bias",
    "label/kernel": "output_weights",
    "label/bias": "output_bias",
    "span/kernel": "cls/squad/output_weights",
    "span/bias": "cls/squad/output_bias",
}
BLOCK = {
    "attention/query": "attention/self/query",
    "attention/key": "attention/self/key",
    "attention/value": "attention/self/value",
    "attention/projection": "attention/output/dense",
    "attention_norm": "attention/output/LayerNorm",
    "intermediate": "intermediate/dense",
    "projection": "output/dense",
    "output_norm": "output/LayerNorm",
}
# What a training run leaves in its checkpoints beside the weights -> why it isn't read.
DROPPED = {
    re.compile(r"/(adam_m|adam_v|Adam|Adam_1)$"): "an optimizer's slot",
    re.compile(r"^(global_step|beta1_power|beta2_power)$"): "a counter of the training run",
}
# The tasks of Google's scripts; it has no tagger and no multiple choice.
TASKS = {"bert", "pretraining", "masked_lm", "next_sentence", "text_classifier", "span_classifier"}


def read(folder: str | os.PathLike[str]) -> Preset:
    """Reads a folder of Google's; see `read_with_report`."""
    return read_with_report(folder)[0]


def read_with_report(folder: str | os.PathLike[str]) -> tuple[Preset, parity.Report]:
    """Reads a release, or the folder of a fine-tuning run with both text files copied in.

    The weights are `bert_model.ckpt` in either format of TensorFlow 1 (V2: `.index` and
    `.data-*`; V1: one file), or else the last step of `model.ckpt-1234`. The heads that are
    there make the model: pretraining, masked LM, next sentence, run_classifier's, run_squad's;
    without one it's the encoder. Optimizer slots and step counters are dropped.

    Text is lower-cased or not as the first of these says: our own "keras_bert" key or
    `do_lower_case` in the config; the word "cased" or "uncased" in the folder's name, or the
    names of the releases "chinese_L-" and "multilingual_L-", which are lower-case; the
    vocabulary, which is cased if an ordinary token holds a letter of A-Z.

    Raises:
        InputError: a file is missing or damaged; a number is missing or unknown; a tensor is
            missing, unexpected or of another shape. The message names the file and the thing.
    """
    folder = pathlib.Path(folder)
    config_path, described = _read_config(folder)
    config = _config(described, config_path)
    tokenizer, labels, settings = _texts(folder, config, described, config_path)
    checkpoint = _find_checkpoint(folder)
    tensors, dropped = _read_tensors(checkpoint, config, config_path)
    encoder = bert(config)
    model = _build_task(encoder, tensors)
    report = parity.assign(
        model, tensors, google_name, str(checkpoint),
        encoder=encoder, convert=_turned, dropped=dropped,
    )  # fmt: skip
    report.check()
    if model.name == "text_classifier":
        num_classes = model.output["label"].shape[-1]
        # One class is a regression, whose value has no name.
        labels = labels or tuple(map(str, range(num_classes if num_classes > 1 else 0)))
        if labels and len(labels) != num_classes:
            raise InputError(f"{config_path}: {len(labels)} labels for {num_classes} classes.")
    return Preset(config, encoder, tokenizer, model, labels, settings), report


def write(preset: Preset, folder: str | os.PathLike[str]) -> None:
    """Writes `bert_config.json`, `vocab.txt` and `bert_model.ckpt` (V2) in one step.

    An older folder of just these files is replaced. The pooler goes along with every head.

    Raises:
        InputError: the folder holds something else; or Google's code couldn't compute the
            same from these files: another architecture or head, a layer norm epsilon that
            isn't 1e-12, an activation it doesn't have, a tokenizer that strips accents
            without lower-casing or the reverse, or doesn't split CJK.
    """
    folder = pathlib.Path(folder)
    if folder.exists() and not holds(folder, FILES, [f"{CHECKPOINT}.index"]):
        raise InputError(f"{folder} exists and holds more than a checkpoint: choose another.")
    described = _describe(preset)
    with replacing(folder) as unfinished:
        write_json(unfinished / "bert_config.json", described)
        preset.tokenizer.save_vocabulary(unfinished / "vocab.txt")
        _write_tensors(preset, unfinished / CHECKPOINT)


def google_name(path: str) -> str:
    """Our weight's path -> Google's name."""
    if path in NAMES:
        return NAMES[path]
    layer, leaf = path.rsplit("/", 1)
    if not layer.startswith("block_"):
        return f"{NAMES[layer]}/{leaf}"
    block, part = layer.split("/", 1)
    return f"bert/encoder/layer_{block.removeprefix('block_')}/{BLOCK[part]}/{leaf}"


def _turned(path: str, tensor: np.ndarray) -> np.ndarray:
    """Google's tensor as ours, or ours as Google's: its heads' `output_weights` are (C, D)."""
    return tensor.T if NAMES.get(path, "").endswith("output_weights") else tensor


def _read_config(folder: pathlib.Path) -> tuple[pathlib.Path, dict[str, Any]]:
    paths = [folder / name for name in ("bert_config.json", "config.json")]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise InputError(
            f"{folder} has no bert_config.json: copy it and vocab.txt from the original model."
        )
    try:
        described = dict(json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} isn't a JSON object: {error}.") from error
    # Keys beyond these, such as the multilingual models' `pooler_type`, say nothing in
    # Google's code either.
    missing = sorted(set(NUMBERS) - set(described))
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}.")
    return path, described


def _config(described: dict[str, Any], path: pathlib.Path) -> BertConfig:
    numbers = {ours: described[theirs] for theirs, ours in NUMBERS.items()}
    try:
        if numbers["activation"] not in ACTIVATIONS:
            known, word = ", ".join(ACTIVATIONS), numbers["activation"]
            raise ValueError(f"hidden_act must be one of {known}. Received: {word!r}.")
        numbers["activation"] = ACTIVATIONS[numbers["activation"]]
        for name in ("dropout", "attention_dropout", "initializer_range"):
            numbers[name] = float(numbers[name])
        epsilon = float(described.get("layer_norm_eps", NORM_EPSILON))
        return BertConfig(**numbers, norm_epsilon=epsilon)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path} can't be used: {error}") from error


def _texts(
    folder: pathlib.Path, config: BertConfig, described: dict[str, Any], config_path: pathlib.Path
) -> tuple[WordPiece, tuple[str, ...], dict[str, Any]]:
    """The tokenizer, the labels and the settings."""
    own: dict[str, Any] = {
        "labels": [],
        "lowercase": described.get("do_lower_case"),
        "max_chars_per_word": 200,
        "settings": {"max_sequence_length": config.max_sequence_length},
    }
    try:
        own |= described.get("keras_bert", {})
        if not isinstance(own["labels"], list) or own["lowercase"] not in (None, True, False):
            raise ValueError(f"labels={own['labels']!r}, lowercase={own['lowercase']!r}")
        labels, settings = tuple(map(str, own["labels"])), dict(own["settings"])
        max_chars_per_word = int(own["max_chars_per_word"])
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{config_path}: the key keras_bert can't be used: {error}.") from error
    vocabulary = WordPiece(folder / "vocab.txt").vocabulary
    if len(vocabulary) > config.vocabulary_size:
        raise InputError(
            f"{config_path} has a vocab_size of {config.vocabulary_size} and vocab.txt beside it "
            f"{len(vocabulary)} tokens: they belong to different models."
        )
    said = own["lowercase"]
    lowercase = said if isinstance(said, bool) else _lowercase(folder, vocabulary)
    tokenizer = WordPiece(vocabulary, lowercase, max_chars_per_word=max_chars_per_word)
    return tokenizer, labels, settings


def _lowercase(folder: pathlib.Path, vocabulary: list[str]) -> bool:
    name = folder.resolve().name.lower()
    if re.match(r"(chinese|multilingual)_l-\d", name):
        return True
    if word := re.search(r"(?<![a-z])(un)?cased(?![a-z])", name):
        return word[1] is not None
    # [CLS], <S> and their like are upper-case in every vocabulary.
    return not any(re.search("[A-Z]", t) for t in vocabulary if not t.startswith(("[", "<")))


def _find_checkpoint(folder: pathlib.Path) -> pathlib.Path:
    """The checkpoint's prefix, as TensorFlow names it."""
    name = re.compile(r"(.+\.ckpt(?:-(\d+))?)(?:\.index)?")
    found = [match for path in folder.iterdir() if (match := name.fullmatch(path.name))]
    latest: dict[str, pathlib.Path] = {}  # of each kind: bert_model, model
    for match in sorted(found, key=lambda match: int(match[2] or 0)):
        latest[match[1].split(".ckpt")[0]] = folder / match[1]
    if len(latest) != 1:
        names = ", ".join(sorted(path.name for path in latest.values()))
        raise InputError(
            f"{folder} must hold one checkpoint, {CHECKPOINT}.index or model.ckpt-1234.index. "
            f"Received: {names or 'none'}."
        )
    return latest.popitem()[1]


def _tensorflow() -> Any:
    try:
        import tensorflow
    except ImportError:
        raise InputError("Google's files need TensorFlow: `pip install tensorflow`.") from None
    return tensorflow


def _read_tensors(
    checkpoint: pathlib.Path, config: BertConfig, config_path: pathlib.Path
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The weights by Google's names, and what's dropped with the reason."""
    tf = _tensorflow()
    damaged = (tf.errors.OpError, IndexError, RuntimeError, ValueError)
    try:
        reader = tf.train.load_checkpoint(str(checkpoint))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except damaged as error:
        raise InputError(f"{checkpoint} can't be opened: {error}.") from error
    dropped = {n: why for n in sorted(shapes) for x, why in DROPPED.items() if x.search(n)}
    _check_length(checkpoint, shapes, dtypes)
    _check_sizes(checkpoint, shapes, config, config_path)
    tensors = {}
    for name in sorted(set(shapes) - set(dropped)):
        if not dtypes[name].is_floating:
            raise InputError(f"{checkpoint}: {name} must be floats. Received: {dtypes[name].name}.")
        try:
            tensors[name] = np.asarray(reader.get_tensor(name), np.float32)
        except damaged as error:
            raise InputError(f"{checkpoint} is damaged at tensor {name}: {error}.") from error
    return tensors, dropped


def _check_length(checkpoint: pathlib.Path, shapes: Mapping, dtypes: Mapping) -> None:
    """A download that broke off is found before anything is read. V1 has no index to ask."""
    expected = sum(math.prod(shape) * dtypes[name].size for name, shape in shapes.items())
    pieces = checkpoint.parent.glob(f"{checkpoint.name}.data-*")
    received = sum(path.stat().st_size for path in pieces)
    if checkpoint.with_name(f"{checkpoint.name}.index").is_file() and received < expected:
        raise InputError(
            f"{checkpoint}.data-* has {received} bytes where the index asks for {expected}: it's "
            "missing or broke off, so download it again."
        )


def _check_sizes(
    checkpoint: pathlib.Path, shapes: Mapping, config: BertConfig, config_path: pathlib.Path
) -> None:
    """Stops before a model is built from numbers that aren't the checkpoint's."""
    width = config.hidden_dim
    expected = {
        "bert/embeddings/word_embeddings": (config.vocabulary_size, width),
        "bert/embeddings/position_embeddings": (config.max_sequence_length, width),
        "bert/embeddings/token_type_embeddings": (config.num_segments, width),
        "bert/encoder/layer_0/intermediate/dense/kernel": (width, config.intermediate_dim),
    }
    layers = {int(m[1]) for name in shapes if (m := re.match(r"bert/encoder/layer_(\d+)/", name))}
    missing = [name for name in expected if name not in shapes]
    # One more than there are: enough to find a gap, whatever the config promises.
    candidates = range(min(config.num_layers, len(layers) + 1))
    missing += [f"bert/encoder/layer_{i}/*" for i in candidates if i not in layers]
    if missing:
        raise InputError(f"{checkpoint} lacks {', '.join(missing)}, which {config_path} asks for.")
    for name, shape in expected.items():
        if tuple(shapes[name]) != shape:
            raise InputError(
                f"{checkpoint}: tensor {name} must have the shape {shape} by {config_path}. "
                f"Received: {tuple(shapes[name])}."
            )


def _build_task(encoder: keras.Model, tensors: Mapping[str, np.ndarray]) -> keras.Model:
    """The model of the heads that are there; a second kind of head is left unexpected."""
    if "cls/squad/output_weights" in tensors:
        return tasks.span_classifier(encoder)
    if "output_weights" in tensors:
        # Should it not be (C, D), the shape is refused when it's assigned.
        num_classes = tensors["output_weights"].size // encoder.output["pooled_output"].shape[-1]
        return tasks.text_classifier(encoder, max(num_classes, 1))
    next_sentence = "cls/seq_relationship/output_weights" in tensors
    if "cls/predictions/output_bias" in tensors:
        return tasks.pretraining(encoder) if next_sentence else tasks.masked_lm(encoder)
    return tasks.next_sentence(encoder) if next_sentence else encoder


def _describe(preset: Preset) -> dict[str, Any]:
    """The content of `bert_config.json`."""
    config, tokenizer, task = preset.config, preset.tokenizer, preset.model.name
    is_other = {
        f"{task} of a {type(config).__name__}": type(config) is not BertConfig or task not in TASKS,
        f"norm_epsilon={config.norm_epsilon}": config.norm_epsilon != NORM_EPSILON,
        f"activation={config.activation!r}": config.activation not in ACTIVATIONS.values(),
        f"strip_accents={tokenizer.strip_accents} with lowercase={tokenizer.lowercase}": (
            tokenizer.strip_accents != tokenizer.lowercase
        ),
        f"split_cjk={tokenizer.split_cjk}": not tokenizer.split_cjk,
    }
    faults = ", ".join(thing for thing, is_there in is_other.items() if is_there)
    if faults:
        raise InputError(
            f"Google's code has no {faults} and would compute other results: choose another format."
        )
    words = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    numbers = dataclasses.asdict(config) | {"activation": words[config.activation]}
    own = {
        "labels": list(preset.labels),
        "lowercase": tokenizer.lowercase,
        "max_chars_per_word": tokenizer.max_chars_per_word,
        "settings": preset.settings,
    }
    return {theirs: numbers[ours] for theirs, ours in NUMBERS.items()} | {"keras_bert": own}


def _write_tensors(preset: Preset, checkpoint: pathlib.Path) -> None:
    tf = _tensorflow()
    tensors = {}
    for weight in [*preset.encoder.weights, *preset.model.weights]:
        tensor = keras.ops.convert_to_numpy(weight.value).astype(np.float32)
        tensors[google_name(weight.path)] = tf.constant(_turned(weight.path, tensor))
    tf.raw_ops.SaveV2(
        prefix=str(checkpoint), tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors), tensors=list(tensors.values()),
    )  # fmt: skip
