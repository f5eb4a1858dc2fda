"""Hugging Face's BERT folders, in both directions.

    config.json             numbers, labels and the class of the model
    model.safetensors       or model.safetensors.index.json and its shards, or pytorch_model.bin
    vocab.txt               or, alone, tokenizer.json
    tokenizer_config.json   casing

What a folder says is followed and what it doesn't say is Hugging Face's own default. Files are
data here: the pickle in a `.bin` goes through torch's `weights_only=True`, and no other is read.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

import keras
import numpy as np

from keras_bert import tasks
from keras_bert.checkpoints.huggingface_texts import (
    describe_config,
    describe_tokenizer,
    read_classifier_dropout,
    read_config,
    read_json,
    read_labels,
    read_tokenizer,
)
from keras_bert.checkpoints.parity import Report, assign
from keras_bert.checkpoints.preset import Preset
from keras_bert.checkpoints.safetensors_files import (
    read_safetensors,
    read_shards,
    write_safetensors,
)
from keras_bert.errors import InputError
from keras_bert.files import holds, replacing, write_json
from keras_bert.models import BertConfig, bert

# Our task -> Hugging Face's class and the tensors of its heads.
TASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "encoder": ("BertModel", ()),
    "pretraining": ("BertForPreTraining", ("cls.predictions", "cls.seq_relationship")),
    "masked_lm": ("BertForMaskedLM", ("cls.predictions",)),
    "next_sentence": ("BertForNextSentencePrediction", ("cls.seq_relationship",)),
    "text_classifier": ("BertForSequenceClassification", ("classifier",)),
    "token_classifier": ("BertForTokenClassification", ("classifier",)),
    "multiple_choice": ("BertForMultipleChoice", ("classifier",)),
    "span_classifier": ("BertForQuestionAnswering", ("qa_outputs",)),
}
HEADS = ("cls.predictions", "cls.seq_relationship", "classifier", "qa_outputs")
# Our layer -> Hugging Face's module; a block's stand below "block_3" and "bert.encoder.layer.3".
MODULES = {
    "token_embedding": "bert.embeddings.word_embeddings",
    "position_embedding": "bert.embeddings.position_embeddings",
    "segment_embedding": "bert.embeddings.token_type_embeddings",
    "embedding_norm": "bert.embeddings.LayerNorm",
    "attention/query": "attention.self.query",
    "attention/key": "attention.self.key",
    "attention/value": "attention.self.value",
    "attention/projection": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "projection": "output.dense",
    "output_norm": "output.LayerNorm",
    "pooler": "bert.pooler.dense",
    "masked_lm_head/dense": "cls.predictions.transform.dense",
    "masked_lm_head/norm": "cls.predictions.transform.LayerNorm",
    "masked_lm": "cls.predictions",
    "next_sentence": "cls.seq_relationship",
    "label": "classifier",
    "labels": "classifier",
    "span": "qa_outputs",
}
WORDS = "bert.embeddings.word_embeddings.weight"
# A copy that some files hold -> the tensor to which BERT ties it.
TIED = {
    "cls.predictions.decoder.weight": WORDS,
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
# What wrappers put before the encoder's names; heads stand beside the encoder's "bert.".
PREFIXES = ("", "bert.", "module.", "module.bert.", "model.", "model.bert.")
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
OURS = ("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json",
        "special_tokens_map.json")  # fmt: skip


def read(folder: str | os.PathLike[str]) -> Preset:
    """Reads a Hugging Face BERT folder: the task's model if it has a head, else the encoder.

    Raises:
        InputError: a file is missing or damaged, says something that we can't follow, or its
            tensors aren't exactly the model's. The message names the file and the thing.
    """
    return read_with_report(folder)[0]


def read_with_report(folder: str | os.PathLike[str], strict: bool = True) -> tuple[Preset, Report]:
    """`read`, and what became of every tensor.

    Without `strict`, missing and unexpected tensors are only reported, and the weights that
    got none keep their initial values.
    """
    folder = pathlib.Path(folder)
    path = folder / "config.json"
    described = read_json(path)
    config = read_config(described, path)
    tensors, source = _read_tensors(folder)
    spelling = _Spelling(tensors, source)
    task = _task(described, path, spelling)
    _check_sizes(config, tensors, spelling, strict)
    tokenizer, settings = read_tokenizer(folder, config)

    encoder = bert(config)
    model, labels = _build(task, encoder, described, path, spelling)
    has_pooler = any("pooler.dense." in name for name in tensors)
    uses_pooler = task != "encoder" and any(w.path.startswith("pooler/") for w in model.weights)

    def may_lack(path: str) -> str | None:
        if path.startswith("pooler/") and not has_pooler and not uses_pooler:
            return "the file was saved without a pooler; the initial value stays"
        return None

    report = assign(
        model,
        tensors,
        lambda path: spelling.find(hugging_face_name(path)),
        source,
        encoder=encoder,
        convert=lambda path, tensor: tensor.T if path.endswith("kernel") else tensor,
        dropped=spelling.dropped(),
        may_lack=may_lack,
    )
    report.prefix = spelling.prefix
    if strict:
        report.check()
    if task == "encoder" and not has_pooler:
        settings["pooler"] = False
    if task == "text_classifier" and described.get("problem_type") == "multi_label_classification":
        settings["multi_label"] = True
    return Preset(config, encoder, tokenizer, model, labels, settings), report


def write(preset: Preset, folder: str | os.PathLike[str]) -> None:
    """Writes a Hugging Face folder; an older one is replaced once the new one is whole.

    The tensors are exactly those of Hugging Face's class: tied ones are written once, and a
    pooler only where its class has one.

    Raises:
        InputError: the folder holds other files.
        ValueError: the model isn't an encoder of `bert` or one of `keras_bert.tasks`.
    """
    folder = pathlib.Path(folder)
    if folder.exists() and not holds(folder, OURS, ["model.safetensors"]):
        raise InputError(f"{folder} exists and holds more than a model: choose another folder.")
    described, tensors = _describe(preset), _tensors(preset)
    casing, special = describe_tokenizer(preset.tokenizer)
    casing["model_max_length"] = preset.settings.get(
        "max_sequence_length", preset.config.max_sequence_length
    )
    with replacing(folder) as unfinished:
        write_json(unfinished / "config.json", described)
        preset.tokenizer.save_vocabulary(unfinished / "vocab.txt")
        write_json(unfinished / "tokenizer_config.json", casing | special)
        write_json(unfinished / "special_tokens_map.json", special)
        write_safetensors(tensors, unfinished / "model.safetensors")


def hugging_face_name(path: str) -> str:
    """Our weight's path -> the name of the tensor in a Hugging Face model with a head."""
    layer, leaf = path.rsplit("/", 1)
    leaf = "bias" if leaf in ("bias", "beta") else "weight"
    if not layer.startswith("block_"):
        return f"{MODULES[layer]}.{leaf}"
    block, part = layer.split("/", 1)
    return f"bert.encoder.layer.{block.removeprefix('block_')}.{MODULES[part]}.{leaf}"


class _Spelling:
    """How one file spells Hugging Face's names: its prefix, and what older versions wrote."""

    def __init__(self, tensors: dict[str, np.ndarray], source: str):
        self.tensors, self.source = tensors, source
        table = WORDS.removeprefix("bert.")
        prefixes = [prefix for prefix in PREFIXES if prefix + table in tensors]
        if len(prefixes) != 1:
            raise InputError(
                f"{source} must hold one {table}, alone or after {', '.join(PREFIXES[1:])}. "
                f"Received: {len(prefixes)} of them among {', '.join(list(tensors)[:3])}, ..."
            )
        self.prefix = prefixes[0]
        self.outer = self.prefix.removesuffix("bert.")

    def find(self, name: str) -> str:
        """The file's name of a tensor; where it lacks the tensor, the name it would have."""
        inner = name.startswith("bert.")
        usual = self.prefix + name.removeprefix("bert.") if inner else self.outer + name
        legacy = usual.replace("LayerNorm.weight", "LayerNorm.gamma")
        spellings = [usual, name, legacy.replace("LayerNorm.bias", "LayerNorm.beta")]
        if name == "cls.predictions.bias":
            spellings.append(self.outer + "cls.predictions.decoder.bias")
        return next((each for each in spellings if each in self.tensors), usual)

    def heads(self) -> tuple[str, ...]:
        """Those of `HEADS` that the file has tensors of."""
        names = [name.removeprefix(self.outer) for name in self.tensors]
        return tuple(h for h in HEADS if any(name.startswith(f"{h}.") for name in names))

    def dropped(self) -> dict[str, str]:
        """The tensors that carry nothing of their own -> why; a decoder must equal its tie."""
        reasons = {name: "a buffer, no weight" for name in self.tensors if name.endswith(BUFFERS)}
        for tied, original in TIED.items():
            tied, original = self.find(tied), self.find(original)
            if tied == original or not {tied, original} <= set(self.tensors):
                continue
            if not np.array_equal(self.tensors[tied], self.tensors[original]):
                raise InputError(
                    f"{self.source}: tensor {tied} must equal {original}, to which BERT ties it; "
                    "an untied decoder can't be kept."
                )
            reasons[tied] = f"tied: it equals {original}"
        return reasons


def _task(described: dict[str, Any], path: pathlib.Path, spelling: _Spelling) -> str:
    """Our task for the heads that the file holds; `classifier` alone needs the class's name."""
    heads = spelling.heads()
    classes = described.get("architectures") or []
    if not isinstance(classes, list):
        raise InputError(f"{path}: architectures must be a list. Received: {classes!r}.")
    for name, needed in TASKS.values():
        if name in classes and not set(needed) <= set(heads):
            raise InputError(
                f"{spelling.source} lacks {needed[-1]}.*, the head of {name}, which {path} names."
            )
    fitting = [task for task, (_, needed) in TASKS.items() if needed == heads]
    stated = [task for task in fitting if TASKS[task][0] in classes]
    if len(stated or fitting) != 1:
        raise InputError(
            f"{path}: `architectures` must name the class that {spelling.source} with "
            f"{', '.join(heads)} belongs to, one of {', '.join(n for n, _ in TASKS.values())}. "
            f"Received: {classes}."
        )
    return (stated or fitting)[0]


def _check_sizes(
    config: BertConfig, tensors: dict[str, np.ndarray], spelling: _Spelling, strict: bool
) -> None:
    """Compares the config with the tensors before memory is taken for what it says."""
    layer = "bert.encoder.layer"
    for name, axis, size, number in (
        (WORDS, 0, config.vocabulary_size, "vocab_size"),
        (WORDS, 1, config.hidden_dim, "hidden_size"),
        ("bert.embeddings.position_embeddings.weight", 0, config.max_sequence_length,
         "max_position_embeddings"),
        ("bert.embeddings.token_type_embeddings.weight", 0, config.num_segments,
         "type_vocab_size"),
        (f"{layer}.0.intermediate.dense.weight", 0, config.intermediate_dim, "intermediate_size"),
    ):  # fmt: skip
        name = spelling.find(name)
        shape = tensors[name].shape if name in tensors else None
        if shape is not None and (len(shape) != 2 or shape[axis] != size):
            raise InputError(
                f"{spelling.source}: axis {axis} of tensor {name} must be {size}, config.json's "
                f"{number}. Received: shape {shape}."
            )
    for i in range(config.num_layers if strict else 0):
        first = spelling.prefix + f"encoder.layer.{i}."
        if not any(name.startswith(first) for name in tensors):
            raise InputError(
                f"{spelling.source} lacks {first}*: config.json's num_hidden_layers is "
                f"{config.num_layers}."
            )


def _build(
    task: str,
    encoder: keras.Model,
    described: dict[str, Any],
    path: pathlib.Path,
    spelling: _Spelling,
) -> tuple[keras.Model, tuple[str, ...]]:
    """The task's model and its labels."""
    if task == "encoder":
        return encoder, ()
    build = getattr(tasks, task)
    arguments: dict[str, Any] = {}
    labels: tuple[str, ...] = ()
    if TASKS[task][1] == ("classifier",):
        arguments["dropout"] = read_classifier_dropout(described, path)
    if task in ("text_classifier", "token_classifier"):
        name = spelling.find("classifier.weight")
        shape = np.shape(spelling.tensors.get(name, 0))
        if len(shape) != 2:
            raise InputError(f"{spelling.source} must hold the matrix {name}. Received: {shape}.")
        arguments["num_classes"] = shape[0]
        labels = read_labels(described.get("id2label"), shape[0], path)
    return build(encoder, **arguments), labels


def _read_tensors(folder: pathlib.Path) -> tuple[dict[str, np.ndarray], str]:
    """The tensors, and the path of the file that lists them."""
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        wanted = ", ".join(WEIGHTS)
        raise InputError(f"{folder} isn't a Hugging Face folder: it has none of {wanted}.")
    if path.suffix == ".json":
        return read_shards(path, read_json(path).get("weight_map")), str(path)
    return (_read_bin if path.suffix == ".bin" else read_safetensors)(path), str(path)


def _read_bin(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError:
        raise ImportError(
            f"{path} is torch's: run `pip install 'keras3-bert[torch]'` to read it."
        ) from None
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch names no class for what it may raise here
        raise InputError(
            f"{path} is damaged or holds more than tensors, and nothing in it was run: "
            f"{type(error).__name__}."
        ) from None
    if not isinstance(tensors, dict):
        raise InputError(f"{path} must hold tensors by name. Received: {type(tensors).__name__}.")
    arrays = {}
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise InputError(
                f"{path}: {name!r} must be a tensor. Received: {type(tensor).__name__}."
            )
        # A shape alone costs nothing to claim; the numbers have to be there.
        if tensor.layout == torch.strided and tensor.device.type == "cpu":
            stored = tensor.untyped_storage().nbytes()
            if not 0 < tensor.numel() * tensor.element_size() <= stored:
                raise InputError(f"{path}: tensor {name} isn't stored whole in this file.")
        # numpy has no bfloat16; float32 holds its values.
        tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        try:
            arrays[name] = tensor.detach().numpy()
        except (TypeError, RuntimeError) as error:  # sparse, quantized, without storage
            raise InputError(f"{path}: tensor {name} must be a plain array: {error}") from None
    return arrays


def _describe(preset: Preset) -> dict[str, Any]:
    """The `config.json` of a preset."""
    task, model = _task_of(preset), preset.model
    described: dict[str, Any] = {"architectures": [TASKS[task][0]], "model_type": "bert"}
    described |= describe_config(preset.config) | {"pad_token_id": preset.tokenizer.pad_id}
    if TASKS[task][1] == ("classifier",):
        name = "labels_dropout" if task == "token_classifier" else "label_dropout"
        described["classifier_dropout"] = model.get_layer(name).rate
    if task in ("text_classifier", "token_classifier"):
        count = next(iter(model.output.values())).shape[-1]
        labels = preset.labels or [f"LABEL_{i}" for i in range(count)]
        described["id2label"] = {str(i): label for i, label in enumerate(labels)}
        described["label2id"] = {label: i for i, label in enumerate(labels)}
    if task == "text_classifier":
        several = "multi" if preset.settings.get("multi_label") else "single"
        kind = "regression" if count == 1 else f"{several}_label_classification"
        described["problem_type"] = kind
    return described


def _tensors(preset: Preset) -> dict[str, np.ndarray]:
    """The tensors by Hugging Face's names; tied ones are written once, as it does."""
    tensors = {}
    for weight in preset.model.weights:
        name = hugging_face_name(weight.path)
        value = keras.ops.convert_to_numpy(weight.value).astype(np.float32)
        tensors[name] = value.T if weight.path.endswith("kernel") else value
    if _task_of(preset) != "encoder":
        return tensors
    tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    if preset.settings.get("pooler") is False:
        return {name: x for name, x in tensors.items() if not name.startswith("pooler.")}
    return tensors


def _task_of(preset: Preset) -> str:
    task = "encoder" if preset.model is preset.encoder else preset.model.name
    if not isinstance(preset.config, BertConfig) or task not in TASKS:
        raise ValueError(
            f"`preset.model` must be BERT's encoder or one of {', '.join([*TASKS][1:])} on it. "
            f"Received: a model named {preset.model.name!r}."
        )
    return task
