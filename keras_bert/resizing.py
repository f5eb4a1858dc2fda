"""A preset with other tables: more tokens, fewer tokens, more or fewer positions.

Each function takes a preset of any task and returns a new one, with weights of its own; the
given one stays as it was. Ids change only in `trim_vocabulary`: records and exports that were
made before it hold the old ones.

What depends on the vocabulary is the token table, which is the masked-LM decoder too (the tie
stays), and that decoder's bias.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from keras_bert.checkpoints.preset import Preset, build, task_of
from keras_bert.tokenizers import SPECIAL_TOKENS, WordPiece

EMBEDDINGS = "token_embedding/embeddings"
OUTPUT_BIAS = "masked_lm/bias"
POSITIONS = "position_embedding/embeddings"
# The bias of a row that no token has: it takes nothing from the probabilities of the tokens,
# in any precision.
NEVER = -10_000.0


def add_tokens(preset: Preset, tokens: Iterable[str]) -> Preset:
    """Adds tokens after the vocabulary's last; those already there are left alone.

    A new token's row starts as the mean of the rows of the pieces that stood for it, and its
    masked-LM bias as the mean of theirs, so that its logit starts as the mean of their logits.
    Where the old vocabulary can't spell it, it starts as [UNK]. Rows by which the table is
    larger than the vocabulary are used up first.

    Args:
        preset: Of any task.
        tokens: Words as the tokenizer spells them, or `##ing` for a piece inside a word. The
            longest piece wins: longer words that begin with a new token are split anew.

    Raises:
        ValueError: a token that no text becomes: it holds a space, or the tokenizer splits it,
            lower-cases it, drops its accents or finds it too long.
        TypeError: `tokens` is one string, or holds something else than strings.

    References:
        - [Hewitt, 2021](https://nlp.stanford.edu/~johnhew/vocab-expansion.html), on rows that
          start as a mean.
    """
    old = preset.tokenizer
    ids = {token: i for i, token in enumerate(old.vocabulary)}
    added = [token for token in dict.fromkeys(_strings(tokens, "tokens")) if token not in ids]
    for token in added:
        _check_reachable(token, old)
    if not added:
        return _rebuilt(preset, {})
    spelled = [_pieces(token, ids) for token in added]
    sources = [[ids[piece] for piece in pieces] if whole else [old.unk_id]
               for pieces, whole in spelled]  # fmt: skip

    def extended(rows: np.ndarray) -> np.ndarray:
        new = np.stack([rows[pieces].mean(axis=0) for pieces in sources])
        unused = rows[old.vocabulary_size + len(new) :]
        return np.concatenate([rows[: old.vocabulary_size], new, unused])

    return _with_tokens(preset, [*old.vocabulary, *added], extended)


def trim_vocabulary(preset: Preset, texts: Iterable[str | bytes]) -> Preset:
    """Keeps the tokens that the texts need, in their order, and renumbers them.

    They are: the special tokens; the pieces of every word; where a word is [UNK], the pieces
    before the letter that can't be spelled, without which shorter ones might spell it; and
    every letter of the words, at the start of a word and inside it, so that other words of
    the same letters can be spelled. All else goes, rows beyond the vocabulary too.

    The texts keep their tokens: the longest piece wins, and none that's gone was theirs.

    Args:
        preset: Of any task.
        texts: All that the model is for; a generator will do.

    Raises:
        ValueError: the texts hold no word.
        TypeError: `texts` is one string, or holds something else than strings.

    References:
        - [Abdaoui et al., 2020](https://arxiv.org/abs/2010.05609), who keep some languages of
          multilingual BERT.
    """
    old = preset.tokenizer
    ids = {token: i for i, token in enumerate(old.vocabulary)}
    words = {word for text in _strings(texts, "texts") for word in old.splitter.words(text)}
    if not words:
        raise ValueError("`texts` must hold a word. Received: none in any of them.")
    needed = set(SPECIAL_TOKENS)
    for letter in {letter for word in words for letter in word}:
        needed |= {letter, f"##{letter}"}
    for word in words:
        if len(word) <= old.max_chars_per_word:
            needed.update(_pieces(word, ids)[0])
    kept = sorted(ids[token] for token in needed if token in ids)
    return _with_tokens(preset, [old.vocabulary[i] for i in kept], lambda rows: rows[kept])


def resize_vocabulary(preset: Preset, vocabulary_size: int) -> Preset:
    """Gives the token table more or fewer rows than there are tokens, say a multiple of 8.

    Ids and outputs of the tokens stay; new rows are zeros which no prediction chooses.

    Raises:
        ValueError: a token would lose its row.
    """
    tokens, rows = preset.tokenizer.vocabulary_size, preset.config.vocabulary_size
    if type(vocabulary_size) is not int or vocabulary_size < tokens:
        raise ValueError(
            f"`vocabulary_size` must be at least {tokens}, the number of tokens. "
            f"Received: vocabulary_size={vocabulary_size}."
        )
    more = max(vocabulary_size - rows, 0)

    def resized(values: np.ndarray) -> np.ndarray:
        fill = 0.0 if values.ndim > 1 else NEVER
        new = np.full((more, *values.shape[1:]), fill, values.dtype)
        return np.concatenate([values[:vocabulary_size], new])

    return _with_tokens(preset, preset.tokenizer.vocabulary, resized)


def resize_positions(preset: Preset, max_sequence_length: int) -> Preset:
    """Gives the position table more or fewer rows.

    Fewer are the first ones, and shorter texts keep their outputs. More repeat the table from
    its start, which keeps what heads learned about neighbours everywhere but at the seams; the
    model still needs training on long texts. The setting `max_sequence_length` follows where
    it was the whole table, or would be beyond the new one.

    Args:
        preset: Of any task, with learned positions.
        max_sequence_length: The new table's rows, 3 or more: [CLS], a token, [SEP].

    Raises:
        ValueError: it's less than 3, or the model has no table of positions.

    References:
        - [Beltagy et al., 2020](https://arxiv.org/abs/2004.05150), section 5, who repeat the
          512 rows up to 4,096.
    """
    if type(max_sequence_length) is not int or max_sequence_length < 3:
        raise ValueError(
            "`max_sequence_length` must be a whole number of at least 3. "
            f"Received: max_sequence_length={max_sequence_length}."
        )
    if POSITIONS not in _weights(preset.encoder, preset.model):
        raise ValueError(
            f"`preset` must have the weight {POSITIONS}. "
            f"Received: a model named {preset.encoder.name!r}."
        )
    old = preset.config.max_sequence_length
    repeated = np.arange(max_sequence_length) % old
    settings = dict(preset.settings)
    longest = settings.get("max_sequence_length", old)
    if "max_sequence_length" in settings and (longest == old or longest > max_sequence_length):
        settings["max_sequence_length"] = max_sequence_length
    return _rebuilt(
        preset,
        {POSITIONS: lambda rows: rows[repeated]},
        settings=settings,
        max_sequence_length=max_sequence_length,
    )


def _strings(values: Iterable[Any], name: str) -> Iterable[str]:
    """The values, as the tokenizer reads them; one string is no list of its letters."""
    if isinstance(values, str | bytes):
        raise TypeError(f"`{name}` must be a list of strings. Received: {name}={values!r}.")
    for value in values:
        if not isinstance(value, str | bytes):
            raise TypeError(f"`{name}` must hold strings. Received: {value!r}.")
        yield value.decode("utf-8", errors="ignore") if isinstance(value, bytes) else value


def _check_reachable(token: str, tokenizer: WordPiece) -> None:
    """Refuses a token that no text becomes."""
    is_later = token.startswith("##") and len(token) > 2
    word = f"a{token[2:]}" if is_later else token  # a piece inside a word comes after a letter
    words = tokenizer.splitter.words(word)
    if words != [word]:
        found = ", ".join(map(repr, words)) or "nothing"
        raise ValueError(
            "A token must be one word of the tokenizer's, or `##` and the rest of one. "
            f"Received: {token!r}, and the tokenizer makes {found} of {word!r}."
        )
    if len(word) > tokenizer.max_chars_per_word:
        raise ValueError(
            f"A token must have at most {tokenizer.max_chars_per_word} letters, since longer "
            f"words are [UNK]. Received: {token!r}."
        )


def _pieces(token: str, ids: dict[str, int]) -> tuple[list[str], bool]:
    """The longest pieces of a word, or of `##` and the rest of one, and whether they spell it."""
    rest, mark = (token[2:], "##") if token.startswith("##") else (token, "")
    pieces: list[str] = []
    while rest:
        ends = range(len(rest), 0, -1)
        end = next((end for end in ends if mark + rest[:end] in ids), 0)
        if not end:
            return pieces, False
        pieces.append(mark + rest[:end])
        rest, mark = rest[end:], "##"
    return pieces, True


def _with_tokens(
    preset: Preset, vocabulary: list[str], change: Callable[[np.ndarray], np.ndarray]
) -> Preset:
    """A new preset whose values by token are changed: the table (V, D) and the bias (V,)."""
    table = _weights(preset.encoder, preset.model)[EMBEDDINGS]
    num_rows = len(change(np.zeros((table.shape[0], 1))))
    tokenizer = WordPiece(vocabulary, **preset.tokenizer.get_config())
    changes = {EMBEDDINGS: change, OUTPUT_BIAS: change}
    return _rebuilt(preset, changes, tokenizer, vocabulary_size=num_rows)


def _rebuilt(
    preset: Preset,
    changes: dict[str, Callable[[np.ndarray], np.ndarray]],
    tokenizer: WordPiece | None = None,
    settings: dict[str, Any] | None = None,
    **numbers: Any,
) -> Preset:
    """The same task built anew from other numbers, with the old weights but for `changes`."""
    config = dataclasses.replace(preset.config, **numbers)
    encoder, model = build(config, *task_of(preset))
    old = _weights(preset.encoder, preset.model)
    for path, weight in _weights(encoder, model).items():
        value = keras.ops.convert_to_numpy(old[path].value)
        change = changes.get(path)
        weight.assign(change(value) if change else value)
    return dataclasses.replace(
        preset,
        config=config,
        encoder=encoder,
        model=model,
        tokenizer=tokenizer or preset.tokenizer,
        settings=dict(preset.settings if settings is None else settings),
    )


def _weights(*models: keras.Model) -> dict[str, keras.Variable]:
    return {weight.path: weight for model in models for weight in model.weights}
