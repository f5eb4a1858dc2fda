"""KerasHub's BERT presets, in both directions and without KerasHub.

    config.json         the numbers of BertBackbone; its weights are in model.weights.h5
    task.json           BertTextClassifier or BertMaskedLM; their weights are in task.weights.h5
    tokenizer.json      casing; the vocabulary is assets/tokenizer/vocabulary.txt
    preprocessor.json   the sequence length

KerasHub's code fixes what other formats write down, so a preset is read as that code computes:

- **GELU** is the tanh approximation in the blocks and the erf form in the masked-LM head.
- **Layer norm epsilon** is 1e-12 in the encoder and 1e-5 in the masked-LM head.
- **Dropout** of the attention's probabilities is that of everything else.
- **Casing** is what tokenizer.json says; lower-case presets may well keep their accents. Its
  `special_tokens_in_strings` is an argument of our tokenizer's calls, and isn't read.
- **Labels** aren't kept; they're "0", "1", ... here. A classifier's softmax is left to
  predictions, as heads return logits.

`write` adds what KerasHub has no word for (activation, epsilons, labels, settings) to
config.json under the key "keras_bert", which `read` takes at its word and KerasHub ignores.
Where KerasHub's code will compute other numbers than the model, `write` warns and leaves a
README.md in the folder: see `differences`. Presets of KerasNLP, since its 0.8 and Keras 2.15,
are read too.
"""

from __future__ import annotations

import os
import pathlib
import re
import warnings
from collections.abc import Mapping
from typing import Any

import h5py
import keras
import numpy as np

from keras_bert import tasks
from keras_bert.checkpoints import parity
from keras_bert.checkpoints.h5_files import read_h5
from keras_bert.checkpoints.keras_hub_texts import (
    FIXED,
    VOCABULARY,
    describe,
    read_config,
    read_object,
    read_own,
    read_tokenizer,
)
from keras_bert.checkpoints.preset import Preset
from keras_bert.errors import InputError
from keras_bert.files import holds, replacing, write_json, write_text
from keras_bert.layers.activations import activation
from keras_bert.models import BertConfig, bert

MODEL, HEAD = WEIGHTS = ("model.weights.h5", "task.weights.h5")
SHARDED = "model.weights.json"  # the index of a preset in several files
FILES = {"config.json", "task.json", "tokenizer.json", "preprocessor.json", "metadata.json"}
FILES |= {*WEIGHTS, VOCABULARY, "README.md"}
README_TITLE = "# What KerasHub computes otherwise"

# Our task -> KerasHub's class; it has no other heads for BERT.
TASKS = {"text_classifier": "BertTextClassifier", "masked_lm": "BertMaskedLM"}
# A class of any of its versions -> our task. An embedder is an encoder and how to pool.
CLASSES = {theirs: ours for ours, theirs in TASKS.items()}
CLASSES |= {"BertClassifier": "text_classifier", "BertTextEmbedder": "encoder"}
MASKED_LM_HEAD = {"activation": "gelu", "norm_epsilon": 1e-5}
ACTIVATIONS = {name: activation(name) for name in ("gelu", "gelu_tanh")}

# Our layer -> the file and the group in it, where Keras numbers the layers of each class.
GROUPS = {
    "token_embedding": f"{MODEL}/layers/reversible_embedding",
    "position_embedding": f"{MODEL}/layers/position_embedding",
    "segment_embedding": f"{MODEL}/layers/embedding",
    "embedding_norm": f"{MODEL}/layers/layer_normalization",
    "pooler": f"{MODEL}/layers/dense",
    "masked_lm_head/dense": f"{HEAD}/layers/masked_lm_head/_intermediate_dense",
    "masked_lm_head/norm": f"{HEAD}/layers/masked_lm_head/_intermediate_layer_norm",
    "masked_lm": f"{HEAD}/layers/masked_lm_head",
    "label": f"{HEAD}/layers/dense",
}
BLOCKS = f"{MODEL}/layers/transformer_encoder"
BLOCK = {
    "attention/query": "_self_attention_layer/query_dense",
    "attention/key": "_self_attention_layer/key_dense",
    "attention/value": "_self_attention_layer/value_dense",
    "attention/projection": "_self_attention_layer/output_dense",
    "attention_norm": "_self_attention_layer_norm",
    "intermediate": "_feedforward_intermediate_dense",
    "projection": "_feedforward_output_dense",
    "output_norm": "_feedforward_layer_norm",
}
# Our leaf -> its place in the group's `vars`; the output's bias stands alone.
PLACES = {"embeddings": 0, "kernel": 0, "gamma": 0, "bias": 1, "beta": 1}
# Keras 2 wrote the attention's four layers with a leading underscore.
OLDER = re.compile(r"(?<=/_self_attention_layer/)_(?=(query|key|value|output)_dense/)")
# What a file may hold besides -> why it isn't read.
DROPPED = {
    "optimizer": "an optimizer's",
    "layers/bert_backbone": f"KerasHub, too, takes the encoder from {MODEL}",
}


def read(folder: str | os.PathLike[str]) -> Preset:
    """Reads a preset that KerasHub or `write` saved; see `read_with_report`."""
    return read_with_report(folder)[0]


def read_with_report(folder: str | os.PathLike[str]) -> tuple[Preset, parity.Report]:
    """Reads the task's model, or the encoder where there's no task; and tells of every tensor.

    Tensors are called by their file and their path in it.

    Raises:
        InputError: a file is missing or damaged, names a class that isn't of BERT, or says
            something that we can't follow; a tensor is missing, unexpected, of another shape or
            in another file. The message names the file and the thing.
    """
    folder = pathlib.Path(folder)
    path = folder / "config.json"
    own = read_own(path)
    config = read_config(path, own)
    if config.activation not in ACTIVATIONS:
        raise InputError(f"{path}: KerasHub has no activation={config.activation!r}.")
    class_name, described = "BertBackbone", dict[str, Any]()
    if (folder / "task.weights.h5").exists() and not (folder / "task.json").is_file():
        raise InputError(f"{folder} has a task.weights.h5 without the task.json that describes it.")
    if (folder / "task.json").is_file():
        class_name, described = read_object(folder / "task.json", tuple(CLASSES))
    task = CLASSES.get(class_name, "encoder")
    tokenizer, settings = read_tokenizer(folder, config, own)
    tensors, dropped = _read_tensors(folder, has_head=task in TASKS)
    _check_sizes(config, tensors, folder)

    encoder = bert(config)
    model = _build(task, encoder, described, own, tensors, folder)
    report = parity.assign(
        model, tensors, keras_hub_name, str(folder), encoder=encoder, dropped=dropped,
        convert=lambda path, tensor: _joined(path, tensor, config),
    )  # fmt: skip
    report.read += list(dropped)
    report.check()
    labels: tuple[str, ...] = ()
    if task == "text_classifier":
        count = described["num_classes"]
        # The one number of a regression has no name.
        labels = tuple(own["labels"] or map(str, range(count if count > 1 else 0)))
        if len(labels) not in (0, count) or not all(isinstance(x, str) for x in labels):
            raise InputError(f"{path}: labels must name {count} classes. Received: {labels}.")
        if described.get("activation") == "sigmoid" and count > 1:
            settings = {"multi_label": True} | settings
    if class_name == "BertTextEmbedder":
        pooling = {"pooling": described.get("pooling_mode", "mean")}
        settings = pooling | {"normalize": described.get("normalize", True)} | settings
    return Preset(config, encoder, tokenizer, model, labels, settings), report


def write(preset: Preset, folder: str | os.PathLike[str]) -> None:
    """Writes a preset that KerasHub 0.32 loads; an older one is replaced once this one is whole.

    Warns with the sentences of `differences`, if there are any. A task that KerasHub loads is
    compiled, and says that the file has nothing for its optimizer, which is so.

    Raises:
        InputError: the folder holds other files; or KerasHub can't express the model: it has
            BERT's encoder, text classifier and masked LM, of GELU in one of its two forms, and
            tokenizers that split CJK.
    """
    folder = pathlib.Path(folder)
    readme = folder / "README.md"
    is_own = readme.exists() and not readme.read_bytes().startswith(README_TITLE.encode())
    if is_own or (folder.exists() and not holds(folder, FILES, WEIGHTS)):
        raise InputError(f"{folder} exists and holds more than a preset: choose another folder.")
    _check_expressible(preset)
    sentences, tensors = differences(preset), _tensors(preset)
    objects = describe(preset, TASKS.get(_task_of(preset)), _own(preset))
    with replacing(folder) as unfinished:
        for name, value in objects.items():
            write_json(unfinished / name, value)
        (unfinished / VOCABULARY).parent.mkdir(parents=True)
        preset.tokenizer.save_vocabulary(unfinished / VOCABULARY)
        for name, tensor in tensors.items():
            file_name, path = name.split("/", 1)
            with h5py.File(unfinished / file_name, "a") as file:
                file[path] = tensor
        if sentences:
            lines = "\n".join(f"- {sentence}" for sentence in sentences)
            write_text(unfinished / "README.md", f"{README_TITLE}\n\n{lines}\n")
    if sentences:
        warnings.warn(f"{folder}: {' '.join(sentences)}", stacklevel=3)


def differences(preset: Preset) -> list[str]:
    """What KerasHub's code does otherwise than the model, and how it's mended after loading.

    The two GELUs differ by up to 4.7e-4; an epsilon of 1e-5 in place of 1e-12 changes a value
    by 5e-6 of itself where the variance is 1, and more where it's small.
    """
    config = preset.config
    layers = "of each of `backbone.transformer_layers`"
    compared = [
        ("the blocks' activation", config.activation, FIXED["activation"],
         f"`_feedforward_intermediate_dense.activation` {layers}"),
        ("the encoder's layer norm epsilon", config.norm_epsilon, FIXED["norm_epsilon"],
         f"`_self_attention_layer_norm.epsilon` and `_feedforward_layer_norm.epsilon` {layers}, "
         "and `backbone.embeddings_layer_norm.epsilon`"),
        ("the attention's dropout, in training,", config.attention_dropout, config.dropout,
         f"`_self_attention_layer._dropout_layer.rate` {layers}"),
    ]  # fmt: skip
    if _task_of(preset) == "masked_lm":
        head = _head_numbers(preset.model)
        compared += [
            ("the masked-LM head's activation", head["activation"], MASKED_LM_HEAD["activation"],
             "`masked_lm_head._intermediate_dense.activation`"),
            ("the masked-LM head's layer norm epsilon", head["norm_epsilon"],
             MASKED_LM_HEAD["norm_epsilon"], "`masked_lm_head._intermediate_layer_norm.epsilon`"),
        ]  # fmt: skip
    return [
        f"In KerasHub, {what} is {theirs}, and here {ours}: after `from_preset`, set {attribute}."
        for what, ours, theirs, attribute in compared
        if ours != theirs
    ]


def keras_hub_name(path: str) -> str:
    """Our weight's path -> the tensor's file and path in it."""
    layer, leaf = path.rsplit("/", 1)
    place = 0 if layer == "masked_lm" else PLACES[leaf]
    if not layer.startswith("block_"):
        return f"{GROUPS[layer]}/vars/{place}"
    block, part = layer.removeprefix("block_").split("/", 1)
    group = BLOCKS if block == "0" else f"{BLOCKS}_{block}"
    return f"{group}/{BLOCK[part]}/vars/{place}"


def _split_shape(path: str, config: BertConfig) -> tuple[int, ...] | None:
    """The shape of an attention's weight in KerasHub, which splits D into heads N and H."""
    width, heads = config.hidden_dim, config.num_heads
    if "/attention/" not in path or path.endswith("projection/bias"):
        return None
    if path.endswith("projection/kernel"):
        return (heads, width // heads, width)
    return (*((width,) if path.endswith("kernel") else ()), heads, width // heads)


def _joined(path: str, tensor: np.ndarray, config: BertConfig) -> np.ndarray:
    """KerasHub's tensor with the heads joined; one of another shape stays, to be refused."""
    if tensor.shape != _split_shape(path, config):
        return tensor
    width = config.hidden_dim
    return tensor.reshape((width, width) if path.endswith("kernel") else (width,))


def _read_tensors(
    folder: pathlib.Path, has_head: bool
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors of both files, and what's dropped with the reason."""
    tensors: dict[str, np.ndarray] = {}
    dropped: dict[str, str] = {}
    for name in WEIGHTS if has_head else WEIGHTS[:1]:
        if not (folder / name).is_file():
            raise InputError(
                f"{folder} has no {name}: save it whole and in one piece, with "
                "`save_to_preset(folder, max_shard_size=None)`."
            )
        found, reasons = read_h5(folder / name, DROPPED)
        tensors |= {OLDER.sub("", f"{name}/{path}"): tensor for path, tensor in found.items()}
        dropped |= {f"{name}/{path}": reason for path, reason in reasons.items()}
    return tensors, dropped


def _check_sizes(
    config: BertConfig, tensors: Mapping[str, np.ndarray], folder: pathlib.Path
) -> None:
    """Compares config.json with the tensors before memory is taken for what it says."""
    width, query = config.hidden_dim, "block_0/attention/query/kernel"
    for path, shape in {
        "token_embedding/embeddings": (config.vocabulary_size, width),
        "position_embedding/embeddings": (config.max_sequence_length, width),
        "segment_embedding/embeddings": (config.num_segments, width),
        query: _split_shape(query, config),
        "block_0/intermediate/kernel": (width, config.intermediate_dim),
    }.items():
        name = keras_hub_name(path)
        if name not in tensors or tensors[name].shape != shape:
            received = tensors[name].shape if name in tensors else "none"
            raise InputError(
                f"{folder}: tensor {name} must have the shape {shape} by config.json. "
                f"Received: {received}."
            )
    count = len({name.split("/")[2] for name in tensors if name.startswith(BLOCKS)})
    if count < config.num_layers:
        raise InputError(
            f"{folder / MODEL} holds {count} layers transformer_encoder, and config.json's "
            f"num_layers is {config.num_layers}."
        )


def _build(
    task: str,
    encoder: keras.Model,
    described: dict[str, Any],
    own: dict[str, Any],
    tensors: Mapping[str, np.ndarray],
    folder: pathlib.Path,
) -> keras.Model:
    """The task's model, with KerasHub's numbers or those that `write` added."""
    if task == "encoder":
        return encoder
    if task == "masked_lm":
        head = MASKED_LM_HEAD | own["head"]
        epsilon = head["norm_epsilon"]
        is_number = isinstance(epsilon, float) and 0 < epsilon < 1
        is_name = head["activation"] in list(ACTIVATIONS)
        if set(head) != set(MASKED_LM_HEAD) or not (is_name and is_number):
            raise InputError(f"{folder / 'config.json'}: no head of {own['head']}.")
        return tasks.masked_lm(encoder, **head)
    path, count = folder / "task.json", described.get("num_classes")
    kernel = tensors.get(keras_hub_name("label/kernel"), np.empty(()))
    if type(count) is not int or kernel.shape[1:] != (count,):
        raise InputError(
            f"{folder}: tensor {keras_hub_name('label/kernel')} must have a column for each of "
            f"the num_classes={count!r} of task.json. Received: {kernel.shape or 'none'}."
        )
    if described.get("activation") not in (None, "linear", "softmax", "sigmoid"):
        raise InputError(
            f"{path}: activation must be linear, softmax or sigmoid, which come after logits. "
            f"Received: {described['activation']!r}."
        )
    dropout = described.get("dropout")
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise InputError(f"{path}: dropout must be in [0, 1). Received: {dropout!r}.")
    return tasks.text_classifier(encoder, count, dropout)


def _head_numbers(model: keras.Model) -> dict[str, Any]:
    head = model.get_layer("masked_lm_head")
    names = {function: name for name, function in ACTIVATIONS.items()}
    return {"activation": names[head.activation], "norm_epsilon": head.norm_epsilon}


def _task_of(preset: Preset) -> str:
    return "encoder" if preset.model is preset.encoder else preset.model.name


def _check_expressible(preset: Preset) -> None:
    config, tokenizer, task = preset.config, preset.tokenizer, _task_of(preset)
    if type(config) is not BertConfig or task not in ("encoder", *TASKS):
        raise InputError(
            f"KerasHub has no {task} of {type(config).__name__}: save the encoder alone, "
            "`dataclasses.replace(preset, model=preset.encoder)`, or choose another format."
        )
    is_other = {
        f"activation={config.activation!r}": config.activation not in ACTIVATIONS,
        f"split_cjk={tokenizer.split_cjk}": not tokenizer.split_cjk,
    }
    if faults := ", ".join(thing for thing, is_there in is_other.items() if is_there):
        raise InputError(f"KerasHub's BERT has no {faults}: choose another format.")


def _own(preset: Preset) -> dict[str, Any]:
    """What KerasHub has no word for."""
    numbers = (*FIXED, "attention_dropout", "initializer_range")
    return {
        "config": {name: getattr(preset.config, name) for name in numbers},
        "head": _head_numbers(preset.model) if _task_of(preset) == "masked_lm" else {},
        "labels": list(preset.labels),
        "settings": preset.settings,
        "tokenizer": {"max_chars_per_word": preset.tokenizer.max_chars_per_word},
    }


def _tensors(preset: Preset) -> dict[str, np.ndarray]:
    """The tensors by KerasHub's names; its encoder has a pooler under any head."""
    tensors = {}
    for weight in [*preset.encoder.weights, *preset.model.weights]:
        tensor = keras.ops.convert_to_numpy(weight.value).astype(np.float32)
        shape = _split_shape(weight.path, preset.config) or tensor.shape
        tensors[keras_hub_name(weight.path)] = tensor.reshape(shape)
    return tensors
