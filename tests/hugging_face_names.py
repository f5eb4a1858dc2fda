"""Hugging Face's weight names beside ours, for comparing with the stored outputs."""

from __future__ import annotations

import keras
import numpy as np

EMBEDDINGS = {
    "token_embedding/embeddings": "bert.embeddings.word_embeddings.weight",
    "position_embedding/embeddings": "bert.embeddings.position_embeddings.weight",
    "segment_embedding/embeddings": "bert.embeddings.token_type_embeddings.weight",
    "embedding_norm/gamma": "bert.embeddings.LayerNorm.weight",
    "embedding_norm/beta": "bert.embeddings.LayerNorm.bias",
}
BLOCK = {
    "attention/query": "attention.self.query",
    "attention/key": "attention.self.key",
    "attention/value": "attention.self.value",
    "attention/projection": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "projection": "output.dense",
    "output_norm": "output.LayerNorm",
}
HEADS = {
    "pooler": "bert.pooler.dense",
    "masked_lm_head/dense": "cls.predictions.transform.dense",
    "masked_lm_head/norm": "cls.predictions.transform.LayerNorm",
    "masked_lm": "cls.predictions",
    "next_sentence": "cls.seq_relationship",
    "label": "classifier",
}
LEAVES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def hugging_face_name(path: str) -> str:
    """Our weight path -> Hugging Face's name."""
    if path in EMBEDDINGS:
        return EMBEDDINGS[path]
    layer, leaf = path.rsplit("/", 1)
    if layer in HEADS:
        name = HEADS[layer]
    else:
        block, part = layer.split("/", 1)
        name = f"bert.encoder.layer.{block.removeprefix('block_')}.{BLOCK[part]}"
    return f"{name}.{LEAVES[leaf]}"


def assign(model: keras.Model, tensors: dict[str, np.ndarray]) -> None:
    """Sets every weight of `model`; torch's kernels are (out, in), ours (in, out)."""
    for weight in model.weights:
        name = hugging_face_name(weight.path)
        tensor = tensors.get(name, tensors.get(name.removeprefix("bert.")))
        weight.assign(tensor.T if weight.path.endswith("kernel") else tensor)
