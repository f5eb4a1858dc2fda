"""What a run starts from: the checkpoint's encoder, parts of it held or drawn anew; its head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from keras_bert.checkpoints import Preset
from keras_bert.checkpoints.preset import build
from keras_bert.layers import EncoderBlock

EMBEDDINGS = ("token_embedding", "position_embedding", "segment_embedding", "embedding_norm")


def start_encoder(args: Any, base: Preset) -> keras.Model:
    """A new encoder to start a run from, with the weights of the checkpoint's.

    `--reinitialize-layers K` leaves the top K blocks and the pooler as they're drawn: they're
    the most specialised on pretraining. `--freeze-layers K` holds the embeddings and the lowest
    K blocks as they are.

    References:
        - Re-initialising: [Zhang et al., 2021](https://arxiv.org/abs/2006.05987), section 5.
        - Freezing: [Lee et al., 2019](https://arxiv.org/abs/1911.03090).
    """
    encoder, _ = build(base.config, "encoder", {})
    blocks = [layer.name for layer in encoder.layers if isinstance(layer, EncoderBlock)]
    anew, frozen = args.reinitialize_layers, args.freeze_layers
    drawn = {"pooler", *blocks[len(blocks) - anew :]} if anew else set()
    held = {*EMBEDDINGS, *blocks[:frozen]} if frozen else set()
    for layer in encoder.layers:
        if layer.name not in drawn:
            layer.set_weights(base.encoder.get_layer(layer.name).get_weights())
        if layer.name in held:
            layer.trainable = False
    return encoder


def keep_head(args: Any, base: Preset, model: keras.Model, labels: Sequence[str] = ()) -> bool:
    """Gives a new task's model the checkpoint's head, where that's one of the same task and labels.

    `--reinitialize-layers` has the head drawn anew as well.

    Args:
        args: Of the run.
        base: The checkpoint.
        model: Of the task, on an encoder from `start_encoder`.
        labels: Class names in the order of the logits.

    Returns:
        Whether it did.
    """
    if args.reinitialize_layers or base.model.name != model.name or base.labels != tuple(labels):
        return False
    inner = {layer.name for layer in base.encoder.layers}
    own = {layer.name: layer.get_weights() for layer in base.model.layers}
    heads = [
        layer
        for layer in model.layers
        if layer.weights and layer.name not in inner and not isinstance(layer, keras.Model)
    ]
    for head in heads:
        shapes = [tuple(weight.shape) for weight in head.weights]
        if [x.shape for x in own.get(head.name, [])] != shapes:
            return False
    for head in heads:
        head.set_weights(own[head.name])
    return True
