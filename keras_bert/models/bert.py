"""BERT: the numbers of Devlin et al. and the functional model that they describe."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from keras_bert.layers import CheckedEmbedding, Dropout, EncoderBlock, Pooler, PositionEmbedding
from keras_bert.layers.initializers import truncated_normal

# Layers, width; a head is 64 wide and the feed-forward network four times the width.
SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The numbers of a BERT encoder; the defaults are BERT-Base, uncased English.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3 and appendix A.2.
        - [Turc et al., 2019](https://arxiv.org/abs/1908.08962), table 1, on the small sizes.
    """

    vocabulary_size: int = 30522
    num_layers: int = 12
    num_heads: int = 12
    hidden_dim: int = 768
    intermediate_dim: int = 3072
    max_sequence_length: int = 512
    num_segments: int = 2
    activation: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_epsilon: float = 1e-12
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (type(value) is not int or value < 1):
                raise ValueError(
                    f"`{field.name}` must be a whole number above 0. "
                    f"Received: {field.name}={value!r}."
                )
        if not isinstance(self.activation, str):
            raise ValueError(
                f"`activation` must be a name. Received: activation={self.activation!r}."
            )
        for name in ("dropout", "attention_dropout"):
            rate = getattr(self, name)
            if not isinstance(rate, float | int) or not 0 <= rate < 1:
                raise ValueError(f"`{name}` must be in [0, 1). Received: {name}={rate!r}.")
        for name in ("norm_epsilon", "initializer_range"):
            number = getattr(self, name)
            if not isinstance(number, float | int) or not 0 < number < 1:
                raise ValueError(f"`{name}` must be in (0, 1). Received: {name}={number!r}.")
        if self.hidden_dim % self.num_heads:
            raise ValueError(
                "`hidden_dim` must be a multiple of `num_heads`. "
                f"Received: hidden_dim={self.hidden_dim}, num_heads={self.num_heads}."
            )

    @classmethod
    def of_size(cls, size: str, **numbers: Any) -> BertConfig:
        """One of `SIZES` by its name; `numbers` override its own."""
        if size not in SIZES:
            raise ValueError(f"`size` must be one of {', '.join(SIZES)}. Received: size={size!r}.")
        num_layers, width = SIZES[size]
        numbers = {
            "num_layers": num_layers,
            "num_heads": width // 64,
            "hidden_dim": width,
            "intermediate_dim": 4 * width,
        } | numbers
        return cls(**numbers)

    @classmethod
    def large(cls, **numbers: Any) -> BertConfig:
        """BERT-Large: 24 layers, 1024 wide, 335,141,888 parameters."""
        return cls.of_size("large", **numbers)

    @classmethod
    def from_dict(cls, numbers: dict[str, Any]) -> BertConfig:
        """The config that `dataclasses.asdict` wrote; an unknown name is an error."""
        unknown = sorted(set(numbers) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"{cls.__name__} has no such number. Received: {', '.join(unknown)}.")
        return cls(**numbers)


def bert(config: BertConfig) -> keras.Model:
    """Builds the encoder.

    Inputs, all int (B, T): `token_ids`; `segment_ids`, 0 in the first sentence and 1 in the
    second; `padding_mask`, 0 at padding and 1 at tokens (k at tokens of the row's k-th
    sequence where several share a row). B and T are free, T up to `max_sequence_length`.

    Outputs: `sequence_output`, float (B, T, D), the last block's vectors; `pooled_output`,
    float (B, D). `encoder.get_layer("block_3").output` is the hidden state after block 3.
    An id or a position without a row in its table is an error, or NaN (`CheckedEmbedding`).

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.
    """
    inputs = text_inputs()
    x = embed(inputs, config)
    blocks = [encoder_block(config, name=f"block_{i}") for i in range(config.num_layers)]
    x = stack(x, blocks, inputs["padding_mask"])
    pooler = Pooler(config.hidden_dim, config.initializer_range, name="pooler")
    return keras.Model(inputs, {"sequence_output": x, "pooled_output": pooler(x)}, name="bert")


def text_inputs() -> dict[str, Any]:
    """The three inputs of an encoder of text, each int32 (B, T)."""
    names = ("token_ids", "segment_ids", "padding_mask")
    return {name: keras.Input((None,), dtype="int32", name=name) for name in names}


def embed(inputs: dict[str, Any], config: BertConfig) -> Any:
    """Token + position + segment, then a layer norm and dropout: float (B, T, D)."""

    def table(rows: int, name: str) -> CheckedEmbedding:
        initializer = truncated_normal(config.initializer_range)
        return CheckedEmbedding(
            rows, config.hidden_dim, embeddings_initializer=initializer, name=name
        )

    tokens = table(config.vocabulary_size, "token_embedding")
    segments = table(config.num_segments, "segment_embedding")
    positions = PositionEmbedding(
        config.max_sequence_length,
        config.hidden_dim,
        config.initializer_range,
        name="position_embedding",
    )
    x = tokens(inputs["token_ids"]) + segments(inputs["segment_ids"])
    x = x + positions(inputs["token_ids"], inputs["padding_mask"])
    x = keras.layers.LayerNormalization(epsilon=config.norm_epsilon, name="embedding_norm")(x)
    return Dropout(config.dropout, name="embedding_dropout")(x)


def encoder_block(config: BertConfig, name: str) -> EncoderBlock:
    """One block with the config's numbers."""
    return EncoderBlock(
        config.hidden_dim,
        config.num_heads,
        config.intermediate_dim,
        activation=config.activation,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        norm_epsilon=config.norm_epsilon,
        initializer_range=config.initializer_range,
        name=name,
    )


def stack(x: Any, blocks: list[EncoderBlock], padding_mask: Any) -> Any:
    """Applies the blocks in the order of the list, which may hold one of them many times."""
    for block in blocks:
        x = block(x, padding_mask=padding_mask)
    return x
