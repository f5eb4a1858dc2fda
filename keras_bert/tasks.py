"""Tasks: each a function from an encoder to a model whose outputs are named like the labels."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_bert.layers import Dropout, EncoderBlock, MaskedLMHead, OutputBias
from keras_bert.layers.checks import has_row, nan_where_not
from keras_bert.layers.crf import Crf
from keras_bert.layers.initializers import truncated_normal
from keras_bert.training.model import Model


def pretraining(encoder: keras.Model, packed: bool = False) -> Model:
    """Masked-LM and next-sentence prediction on one encoder.

    One more input: `mask_positions`, int (B, M), where tokens were masked. Outputs, both
    logits: `masked_lm`, float (B, M, V), and `next_sentence`, float (B, 2), where class 0
    says that B follows A and class 1 that it's a random sentence.

    `packed`: see `text_classifier`; `next_sentence` is then (B, S, 2). `mask_positions` are
    those in the row.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.1.
    """
    inputs, pooled = _pooled(encoder, packed)
    inputs |= {"mask_positions": _mask_positions()}
    outputs = {
        "masked_lm": _masked_lm(encoder, inputs["mask_positions"]),
        "next_sentence": _dense(encoder, 2, "next_sentence")(pooled),
    }
    return Model(inputs, outputs, name="pretraining")


def masked_lm(
    encoder: keras.Model, activation: str | None = None, norm_epsilon: float | None = None
) -> Model:
    """Masked-LM alone: `mask_positions`, int (B, M), to logits `masked_lm`, float (B, M, V).

    The head's activation and layer norm are the encoder's unless given: KerasHub's differ.
    """
    inputs = encoder.input | {"mask_positions": _mask_positions()}
    logits = _masked_lm(encoder, inputs["mask_positions"], activation, norm_epsilon)
    return Model(inputs, {"masked_lm": logits}, name="masked_lm")


def text_classifier(
    encoder: keras.Model, num_classes: int, dropout: float = 0.1, packed: bool = False
) -> Model:
    """Classifies a text or a pair of texts by the pooled vector.

    Output `label`: logits, float (B, C); `num_classes=1` is regression, the value itself.

    With `packed`, rows hold up to S sequences each, as `keras_bert.data.packing` lays them out.
    One more input: `sequence_starts`, int (B, S), where each begins, -1 where a slot is empty.
    `label` is then (B, S, C), its labels are (B, S) (regression: (B, S, 1)) and its weights
    (B, S), 0 at empty slots. The weights are those of the task that isn't packed: see `unpacked`.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 4.1.
    """
    inputs, x = _pooled(encoder, packed)
    x = Dropout(dropout, name="label_dropout")(x)
    logits = _dense(encoder, num_classes, "label")(x)
    return Model(inputs, {"label": logits}, name="text_classifier")


def unpacked(model: keras.Model, encoder: keras.Model) -> Model:
    """The same task without `sequence_starts`, one sequence a row, on the same layers.

    The two models share every weight: train the packed one, evaluate and save this one.

    Args:
        model: A task built with `packed=True`; nothing of it changes.
        encoder: The encoder that it was built on.
    """
    inputs = {name: x for name, x in model.input.items() if name != "sequence_starts"}
    layers = {layer.name: layer for layer in model.layers}
    outputs = dict(model.output)
    for name in outputs.keys() & {"label", "next_sentence"}:
        x = _output(encoder, "pooled_output")
        if f"{name}_dropout" in layers:
            x = layers[f"{name}_dropout"](x)
        outputs[name] = layers[name](x)
    return Model(inputs, outputs, name=model.name)


def _pooled(encoder: keras.Model, packed: bool) -> tuple[dict[str, Any], Any]:
    """A task's inputs, and the pooled vector of each row, (B, D), or sequence, (B, S, D)."""
    if not packed:
        return dict(encoder.input), _output(encoder, "pooled_output")
    starts = keras.Input((None,), dtype="int32", name="sequence_starts")
    first = FirstOfEach(name="first_of_each")(_output(encoder, "sequence_output"), starts)
    pooled = encoder.get_layer("pooler")(first)
    pooled = UnfoldSequences(name="unfold_sequences")(pooled, starts)
    return dict(encoder.input) | {"sequence_starts": starts}, pooled


def _masked_lm(
    encoder: keras.Model,
    mask_positions: Any,
    activation: str | None = None,
    norm_epsilon: float | None = None,
) -> Any:
    table = encoder.get_layer("token_embedding")
    block = _last_block(encoder)
    head = MaskedLMHead(
        table.output_dim,
        activation=block.activation if activation is None else activation,
        norm_epsilon=block.norm_epsilon if norm_epsilon is None else norm_epsilon,
        initializer_range=block.initializer_range,
        name="masked_lm_head",
    )
    x = head(_output(encoder, "sequence_output"), mask_positions)
    return OutputBias(name="masked_lm")(table(x, reverse=True))


def _output(encoder: keras.Model, name: str) -> Any:
    if not isinstance(encoder.output, dict) or name not in encoder.output:
        raise ValueError(
            f"`encoder` must have the output {name}: pass the encoder itself, such as "
            f"`preset.encoder`. Received: a model named {encoder.name!r}."
        )
    return encoder.output[name]


def _mask_positions() -> Any:
    return keras.Input((None,), dtype="int32", name="mask_positions")


def _dense(encoder: keras.Model, units: int, name: str) -> keras.layers.Dense:
    initializer = truncated_normal(_last_block(encoder).initializer_range)
    # Logits stay in float32 under a mixed policy: a loss in bfloat16 has three digits.
    return keras.layers.Dense(units, kernel_initializer=initializer, dtype="float32", name=name)


def _last_block(encoder: keras.Model) -> EncoderBlock:
    return [layer for layer in encoder.layers if isinstance(layer, EncoderBlock)][-1]


def next_sentence(encoder: keras.Model, packed: bool = False) -> Model:
    """Next-sentence prediction alone: logits `next_sentence`, float (B, 2), 0 = B follows A.

    `packed`: see `text_classifier`; `next_sentence` is then (B, S, 2).
    """
    inputs, pooled = _pooled(encoder, packed)
    logits = _dense(encoder, 2, "next_sentence")(pooled)
    return Model(inputs, {"next_sentence": logits}, name="next_sentence")


def token_classifier(
    encoder: keras.Model, num_classes: int, dropout: float = 0.1, crf: bool = False
) -> Model:
    """Classifies every token, as for names of people and places.

    Output `labels`: logits, float (B, T, C). With `crf` it's (B, T, C + 1, C), the scores of a
    chain of words' tags: train with `layers.crf.CrfLoss`, read with `layers.crf.viterbi`.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 5.3.
    """
    x = Dropout(dropout, name="labels_dropout")(_output(encoder, "sequence_output"))
    logits = _dense(encoder, num_classes, "labels")(x)
    if crf:
        logits = Crf(dtype="float32", name="crf")(logits)
    return Model(encoder.input, {"labels": logits}, name="token_classifier")


def span_classifier(encoder: keras.Model) -> Model:
    """Finds where an answer starts and ends.

    Outputs `start` and `end`: logits over the positions, each float (B, T).

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 4.2.
    """
    logits = _dense(encoder, 2, "span")(_output(encoder, "sequence_output"))  # (B, T, 2)
    outputs = {"start": logits[:, :, 0], "end": logits[:, :, 1]}
    return Model(encoder.input, outputs, name="span_classifier")


def multiple_choice(encoder: keras.Model, dropout: float = 0.1) -> Model:
    """Chooses one of K texts, each scored on its own by its pooled vector.

    The inputs have the encoder's names and one axis more: int (B, K, T). Output `label`:
    logits over the choices, float (B, K).

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 4.4.
    """
    inputs = {name: keras.Input((None, None), dtype="int32", name=name) for name in encoder.input}
    rows = {name: FoldChoices(name=f"fold_{name}")(x) for name, x in inputs.items()}
    x = encoder(rows)["pooled_output"]  # (B * K, D)
    x = Dropout(dropout, name="label_dropout")(x)
    scores = _dense(encoder, 1, "label")(x)  # (B * K, 1)
    logits = UnfoldChoices(dtype="float32", name="unfold")(scores, inputs["token_ids"])
    return Model(inputs, {"label": logits}, name="multiple_choice")


@keras.saving.register_keras_serializable("keras_bert")
class FoldChoices(keras.layers.Layer):
    """Makes each choice a row of its own: int (B, K, T) -> int (B * K, T)."""

    def call(self, x: Any) -> Any:
        """Joins the first two axes."""
        return ops.reshape(x, (-1, ops.shape(x)[2]))

    def compute_output_shape(self, x_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """B * K is known to a batch alone."""
        return (None, x_shape[2])


@keras.saving.register_keras_serializable("keras_bert")
class UnfoldChoices(keras.layers.Layer):
    """Gathers the choices' scores: float (B * K, 1), int (B, K, T) -> float (B, K)."""

    def call(self, scores: Any, choices: Any) -> Any:
        """Reads K from the choices."""
        return ops.reshape(scores, (-1, ops.shape(choices)[1]))

    def compute_output_shape(
        self, scores_shape: tuple[int | None, ...], choices_shape: tuple[int | None, ...]
    ) -> tuple[int | None, ...]:
        """A row for each of the B questions."""
        return choices_shape[:2]


@keras.saving.register_keras_serializable("keras_bert")
class FirstOfEach(keras.layers.Layer):
    """Gathers each sequence's first vector: float (B, T, D), int (B, S) -> float (B * S, 1, D).

    The result is what a pooler reads, a sequence a row. An empty slot, -1, gives the row's first
    vector, which must be given no weight.

    Raises:
        ValueError: a start isn't in [-1, T), in an eager call; in compiled code its vector is NaN.
    """

    def call(self, x: Any, sequence_starts: Any) -> Any:
        """Clamps, gathers, and makes each sequence a row."""
        starts = ops.where(ops.equal(sequence_starts, -1), 0, sequence_starts)
        found = has_row(starts, ops.shape(x)[1], "the row")
        first = ops.take_along_axis(x, ops.where(found, starts, 0)[:, :, None], axis=1)
        first = nan_where_not(found, first)  # (B, S, D)
        return ops.reshape(first, (-1, 1, x.shape[-1]))

    def compute_output_shape(
        self, x_shape: tuple[int | None, ...], sequence_starts_shape: tuple[int | None, ...]
    ) -> tuple[int | None, ...]:
        """B * S is known to a batch alone."""
        return (None, 1, x_shape[-1])


@keras.saving.register_keras_serializable("keras_bert")
class UnfoldSequences(keras.layers.Layer):
    """Gives each row its sequences' vectors: float (B * S, D), int (B, S) -> float (B, S, D)."""

    def call(self, pooled: Any, sequence_starts: Any) -> Any:
        """Reads S from the starts."""
        return ops.reshape(pooled, (-1, ops.shape(sequence_starts)[1], pooled.shape[-1]))

    def compute_output_shape(
        self, pooled_shape: tuple[int | None, ...], sequence_starts_shape: tuple[int | None, ...]
    ) -> tuple[int | None, ...]:
        """A vector for each of the S slots."""
        return (*sequence_starts_shape, pooled_shape[-1])
