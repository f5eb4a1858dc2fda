"""A preset of any task as a SavedModel."""

from __future__ import annotations

import os
import pathlib
from types import ModuleType

import keras
import tensorflow as tf

from keras_bert.checkpoints import Preset
from keras_bert.errors import InputError
from keras_bert.export import answering, classification, embedding, filling, tagging
from keras_bert.export.samples import Functions, Request, sample_requests
from keras_bert.export.self_check import check
from keras_bert.export.signature_page import signature_page
from keras_bert.export.signatures import DESCRIPTION, IDS, TEXT_BYTES, TEXT_FORMS, Signature
from keras_bert.export.warm_up import write_warm_up
from keras_bert.files import as_next_number, unfinished_in, write_json, write_text

# A task's model -> its signatures. Whatever else has an encoder is exported as vectors.
TASKS: dict[str, ModuleType] = {
    "pretraining": filling,
    "masked_lm": filling,
    "text_classifier": classification,
    "token_classifier": tagging,
    "span_classifier": answering,
    "sentence_embedder": embedding,
}


def export_saved_model(preset: Preset, folder: str | os.PathLike[str]) -> pathlib.Path:
    """Writes a preset as `folder/1/`, the layout that TensorFlow Serving watches; then as `2/`, ...

    Signatures, by the preset's task, with a free number of rows B, and length T or W:

        ids               token_ids, segment_ids, padding_mask: int32 (B, T)
        ids_by_length     token_ids, segment_ids: int32 (B, T); length: int32 (B,). Of `symmetric`
                          pairs, ids are read in the order in which they come
        text              text: string (B,), UTF-8
        pair              text, pair: string (B,); of classifiers of pairs, in place of `text`
        question_context  question, context: string (B,); of readers
        words             words: string (B, W), "" after the last; of taggers
        serving_default   the same as the form that takes text

    Their outputs, all dense, in float32, int32 and UTF-8, are what the functions of `keras_bert`
    answer:

        classify   label (B,), score (B,), scores (B, C). With `multi_label` also labels (B, K),
                   those that hold, and their count (B,). Of a regression: score (B,).
        tag        words, tags, starts, ends (B, W), count (B,). From ids: tags (B, T).
        answer     answer, start, end, score (B,). From ids: start, end, places of the answer's
                   first and last token, and score.
        fill_mask  tokens, scores (B, M, 5), count (B,), the [MASK]s of a row
        embed      embedding (B, D)

    A text is tokenized as in training, with core TensorFlow ops and the vocabulary as a constant;
    it may have a million bytes. Before the folder gets its name, a fresh process with TensorFlow
    alone loads a copy of it from elsewhere, and must answer as the preset does. Beside the model
    are `signature.md`, with a ready call of each signature, and the requests with which TensorFlow
    Serving warms up.

    Returns:
        The SavedModel's folder.

    Raises:
        ExportError: the export answers otherwise than the preset, or needs more than TensorFlow;
            nothing is left of it.
        InputError: the preset has a head that can't be exported, or Keras runs on another backend
            than TensorFlow.
    """
    check_exportable(preset)
    made = signatures(preset)
    functions = {name: _traced(each) for name, each in made.items()}
    requests = sample_requests(preset, task_of(preset), made, functions)
    [form] = [name for name in TEXT_FORMS if name in made]
    made["serving_default"], functions["serving_default"] = made[form], functions[form]
    requests += [("serving_default", x, y) for name, x, y in requests if name == form]
    module = tf.Module()
    # The variables alone: with the model would come its optimizer's.
    weights = [*preset.encoder.weights, *preset.model.weights]
    module.weights = list({id(each): each.value for each in weights}.values())
    module.functions = functions
    name = pathlib.Path(folder).resolve().name
    with unfinished_in(folder) as unfinished:
        tf.saved_model.save(module, str(unfinished), signatures=functions)
        check(unfinished, requests)
        write_warm_up(unfinished, name, [request[:2] for request in requests])
        write_text(unfinished / "signature.md", _page(preset, name, made, functions, requests))
        description = {"task": task_of(preset), "labels": list(preset.labels)}
        write_json(unfinished / DESCRIPTION, description)
        return as_next_number(unfinished)


def _page(
    preset: Preset,
    name: str,
    made: dict[str, Signature],
    functions: Functions,
    requests: list[Request],
) -> str:
    specs = {key: (each.inputs, functions[key].structured_outputs) for key, each in made.items()}
    # Of each signature's requests the first is the short one.
    examples = {signature: inputs for signature, inputs, _ in reversed(requests)}
    limits = {"bytes": TEXT_BYTES, "tokens": preset.config.max_sequence_length}
    return signature_page(name, specs, examples, limits)


def signatures(preset: Preset) -> dict[str, Signature]:
    """What a preset can be asked: the name of each signature, its function and its inputs."""
    made: dict[str, Signature] = TASKS[task_of(preset)].signatures(preset)
    return made


def task_of(preset: Preset) -> str:
    """The name of the preset's task; an encoder alone makes vectors."""
    return "sentence_embedder" if preset.model is preset.encoder else preset.model.name


def check_exportable(preset: Preset) -> None:
    """Refuses what `export_saved_model` can't export; nothing is written.

    Raises:
        InputError: see there.
    """
    if keras.backend.backend() != "tensorflow":
        raise InputError(
            f"A SavedModel is made on TensorFlow, and Keras runs on {keras.backend.backend()}: "
            "set KERAS_BACKEND=tensorflow and load the preset there."
        )
    if task_of(preset) not in TASKS:
        raise InputError(
            f"A preset of {preset.model.name} can't be exported so far, those of "
            f"{', '.join(TASKS)} can."
        )
    others = set(preset.model.input) - {*IDS, "mask_positions"}
    if others:
        raise InputError(
            f"The export has no input {sorted(others)[0]}: export the task's model without it, "
            "such as the one of `keras_bert.tasks.unpacked`."
        )
    if any(layer.compute_dtype != "float32" for layer in preset.model.layers):
        raise InputError(
            "An export computes in float32, and a layer of the preset doesn't: load it without a "
            "policy such as mixed_bfloat16."
        )


def _traced(signature: Signature) -> tf.types.experimental.ConcreteFunction:
    function = tf.function(signature.function, autograph=False)
    return function.get_concrete_function(**signature.inputs)
