"""SavedModel: a preset as one folder that TensorFlow alone can run."""

from __future__ import annotations

import os
import pathlib

import keras
import tensorflow as tf

from keras_bert.checkpoints import Preset
from keras_bert.errors import InputError
from keras_bert.files import replacing

IDS = ("token_ids", "segment_ids", "padding_mask")
# Settings of texts that are read in another way than the export reads them.
REFUSED = {
    "pair": "pairs of texts",
    "symmetric": "pairs of texts in both orders",
    "truncate": "texts that aren't cut at their end",
    "window_stride": "texts in windows",
}


def export_saved_model(preset: Preset, folder: str | os.PathLike[str]) -> pathlib.Path:
    """Writes a text classifier as `folder/1/`, the layout that TensorFlow Serving watches.

    Signatures, with a free batch size B and length T:

        ids              token_ids, segment_ids, padding_mask: int32 (B, T)
        text             text: string (B,), UTF-8
        serving_default  the same as `text`

    Outputs of each: `label` string (B,), the name of the likeliest class; `score` float32 (B,),
    its probability; `scores` float32 (B, C), all of them in the order of the preset's labels.

    The text signature tokenizes as in training, with core TensorFlow ops and the vocabulary as
    a constant, and cuts texts at the preset's `max_sequence_length`.

    Returns:
        The SavedModel's folder.

    Raises:
        InputError: the preset isn't a text classifier with labels, or one of pairs, of several
            labels at once, or of texts that are read in windows or aren't cut at their end;
            `folder/1` exists; or Keras runs on another backend than TensorFlow.
    """
    check_exportable(preset)
    target = pathlib.Path(folder) / "1"
    if target.exists():
        raise InputError(f"{target} exists: choose another folder, or remove it first.")

    module = tf.Module()
    # The variables alone: with the model would come its optimizer's.
    module.weights = [weight.value for weight in preset.model.weights]
    labels = tf.constant(preset.labels)

    def answers(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        logits = tf.cast(preset.model(inputs, training=False)["label"], tf.float32)
        scores = tf.nn.softmax(logits)
        best = tf.argmax(scores, axis=-1)
        return {
            "label": tf.gather(labels, best),
            "score": tf.reduce_max(scores, axis=-1),
            "scores": scores,
        }

    def from_ids(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return answers(inputs)

    def from_text(text: tf.Tensor) -> dict[str, tf.Tensor]:
        length = preset.settings.get("max_sequence_length", preset.config.max_sequence_length)
        return answers(preset.tokenizer.encode_tf(text, max_length=length, core_ops=True))

    ids = {name: tf.TensorSpec((None, None), tf.int32, name) for name in IDS}
    text = tf.TensorSpec((None,), tf.string, "text")
    module.text = tf.function(from_text, input_signature=[text])
    signatures = {
        "ids": tf.function(from_ids).get_concrete_function(**ids),
        "text": module.text.get_concrete_function(),
        "serving_default": module.text.get_concrete_function(),
    }
    with replacing(target) as unfinished:
        tf.saved_model.save(module, str(unfinished), signatures=signatures)
    return target


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
    if preset.model.name != "text_classifier" or not preset.labels:
        raise InputError(
            "Only text classifiers with labels can be exported so far: fine-tune the preset "
            f"with finetune_classifier.py first. Received: a preset of {preset.model.name}."
        )
    if preset.settings.get("multi_label"):
        raise InputError(
            "A classifier of several labels at once can't be exported so far: the export's scores "
            "are those of one class among all."
        )
    for name, what in REFUSED.items():
        if preset.settings.get(name, "head") not in ("head", False, 0):
            raise InputError(
                f"A classifier of {what} can't be exported so far, as the export reads one text, "
                f"cut at its end: its answers would differ from the preset's ({name!r} in the "
                "preset's settings). Predict with `keras_bert.classify`."
            )
