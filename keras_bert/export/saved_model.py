"""A preset of any task as a SavedModel."""

from __future__ import annotations

import contextlib
import os
import pathlib
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf

from keras_bert.checkpoints import Preset
from keras_bert.errors import InputError
from keras_bert.export import answering, classification, embedding, filling, tagging
from keras_bert.export.light import (
    PRECISIONS,
    largest_difference,
    light_preset,
    states_error,
    stored_weights,
)
from keras_bert.export.samples import (
    TEXTS,
    Functions,
    Request,
    expected_of_texts,
    id_inputs,
    sample_requests,
)
from keras_bert.export.self_check import ExportError, check
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

FARTHEST = 0.25  # error of a light form's states beyond which it's no form of the model


def export_saved_model(
    preset: Preset, folder: str | os.PathLike[str], precision: str = "float32"
) -> pathlib.Path:
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

    Args:
        preset: In float32.
        folder: Where versions are.
        precision: "float32"; or a light form, with the same signatures and float32 outputs:

            "bfloat16"  half the size. The encoder computes in bfloat16, heads and decoding in
                        float32. Faster on CPUs that multiply bfloat16 (AVX512_BF16, AMX), and far
                        slower on those that don't.
            "int8"      a quarter of the size, the speed of float32. The encoder's kernels and the
                        token table are int8 in the file, with a scale for each output or row, and
                        become float32 when it's loaded; the int8 stays in memory beside them.

            A light form must answer as it does in this process: int8 as the functions of
            `keras_bert` do, within 1e-5. bfloat16 rounds otherwise in rows of another length, and
            is compared with the same graph. How far it's from float32 is told in
            `assets.extra/keras_bert.json`: `largest_difference` of scores or vectors on the
            check's texts (None: there are none), and `states_error`, the encoder's relative error.

    Returns:
        The SavedModel's folder.

    Raises:
        ExportError: the export answers otherwise than the preset, or needs more than TensorFlow;
            or a light form's states are off by a quarter. Nothing is left of it.
        InputError: the preset has a head that can't be exported, or Keras runs on another backend
            than TensorFlow; or a light form is asked of a model that isn't of `keras_bert.tasks`.
    """
    check_exportable(preset, precision)
    with _device(precision):
        light = preset if precision == "float32" else light_preset(preset, precision)
    made = signatures(light)
    functions = {name: _traced(each) for name, each in made.items()}
    task = task_of(preset)
    with _device(precision):
        requests = sample_requests(light, task, made, functions, precision == "bfloat16")
    [form] = [name for name in TEXT_FORMS if name in made]
    made["serving_default"], functions["serving_default"] = made[form], functions[form]
    requests += [("serving_default", x, y) for name, x, y in requests if name == form]
    described = {"task": task, "labels": list(preset.labels), "precision": precision}
    distance = {} if light is preset else _distance(preset, light, task, requests)
    module = tf.Module()
    module.weights = stored_weights(preset, light, precision)
    module.functions = functions
    name = pathlib.Path(folder).resolve().name
    with unfinished_in(folder) as unfinished:
        tf.saved_model.save(module, str(unfinished), signatures=functions)
        check(unfinished, requests)
        write_warm_up(unfinished, name, [request[:2] for request in requests])
        write_text(unfinished / "signature.md", _page(preset, name, made, functions, requests))
        write_json(unfinished / DESCRIPTION, described | distance)
        return as_next_number(unfinished)


def _device(precision: str) -> contextlib.AbstractContextManager[Any]:
    """Where a light form is asked: bfloat16 on the CPU, as in the check's process."""
    return tf.device("CPU:0") if precision == "bfloat16" else contextlib.nullcontext()


def _distance(
    preset: Preset, light: Preset, task: str, requests: list[Request]
) -> dict[str, float | None]:
    """How far a light form is from float32: what the description says of it."""
    ids, _ = id_inputs(preset, task, len(TEXTS), set(IDS))
    error = states_error(preset, light, ids)
    if not error < FARTHEST:
        raise ExportError(
            f"The encoder's states are off by {error:.0%} of their length in this precision: "
            "export the preset in float32."
        )
    *_, (_, inputs, outputs) = requests
    exact = expected_of_texts(preset, task, inputs)
    return {"largest_difference": largest_difference(exact, outputs), "states_error": error}


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


def check_exportable(preset: Preset, precision: str = "float32") -> None:
    """Refuses what `export_saved_model` can't export; nothing is written.

    Raises:
        InputError: see there.
        ValueError: there's no such precision.
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"`precision` must be one of {', '.join(PRECISIONS)}. "
            f"Received: precision={precision!r}."
        )
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
