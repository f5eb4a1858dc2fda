"""WordPiece: one definition, as plain Python, for `tf.data`, and as a graph for exports."""

import hashlib
import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.unicode_table import WordSplitter

if TYPE_CHECKING:
    import tensorflow as tf

    from keras_bert.wordpiece_graph import Places

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Looked up here and not where a graph is made: AutoGraph, which follows that, can't follow this.
HAS_TENSORFLOW_TEXT = importlib.util.find_spec("tensorflow_text") is not None
LONGEST_FOR_TENSORFLOW_TEXT = 64  # letters of a token: it takes 256 bytes

_SPECIAL_PATTERN = re.compile(r"(\[(?:PAD|UNK|CLS|SEP|MASK)\])")


class Encoding(NamedTuple):
    """One encoded text or pair, T tokens; `offsets` are code points of the original string."""

    token_ids: list[int]
    segment_ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]  # (start, end); (0, 0) at [CLS] and [SEP]


class WordPiece:
    """BERT's tokenizer, with the ids of the original code.

    A text is split into normalised words (`unicode_table.WordSplitter`), and a word into the
    longest pieces of the vocabulary, greedily from its start; a word that can't be split, or
    is longer than `max_chars_per_word` letters, is [UNK]. The Python form (`__call__`,
    `encode`) and the two graphs (`to_tf`, `encode_tf`) read the same tables and give the same
    ids.

    Args:
        vocabulary: Path of a `vocab.txt` (UTF-8, one token a line), or the list of tokens.
        lowercase: Lower-case the text.
        strip_accents: Drop accents; None means as `lowercase`.
        split_cjk: Make every CJK ideograph a word of its own.
        max_chars_per_word: 200 in the original code, 100 in Hugging Face's.

    Call arguments:
        texts: str or UTF-8 bytes (invalid bytes are left out), or a list of them.
        special_tokens: Read a literal `[MASK]` and its like as that token. By default it
            is text, as anything a stranger may have written should be.

    Returns:
        list[int] for one text, list[list[int]] for a list; without [CLS] and [SEP].

    Raises:
        InputError: The vocabulary is missing, holds a token twice, or lacks a special token.
        TypeError: A text is neither str nor bytes.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.
        - [Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 4.1.
    """

    def __init__(
        self,
        vocabulary: str | os.PathLike[str] | list[str],
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_cjk: bool = True,
        max_chars_per_word: int = 200,
    ):
        if isinstance(vocabulary, (str, os.PathLike)):
            self.vocabulary, source = _read_vocabulary(Path(vocabulary)), str(vocabulary)
        else:
            self.vocabulary, source = list(vocabulary), "the vocabulary list"
        for i, token in enumerate(self.vocabulary):
            if not isinstance(token, str) or "\n" in token or token.endswith("\r"):
                raise InputError(
                    f"{source}: token {i} must be a line of text. Received: {token!r}."
                )
        for name, value in (("lowercase", lowercase), ("split_cjk", split_cjk)):
            if not isinstance(value, bool):
                raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}.")
        if strip_accents not in (None, True, False):
            raise ValueError(
                "`strip_accents` must be True, False or None. "
                f"Received: strip_accents={strip_accents!r}."
            )
        ids = _unique_ids(self.vocabulary, source)
        for token in SPECIAL_TOKENS:
            if token not in ids:
                raise InputError(f"{source}: lacks the token {token}; add it as a line of its own.")
        if type(max_chars_per_word) is not int or max_chars_per_word < 1:
            raise ValueError(
                "`max_chars_per_word` must be a whole number of at least 1. "
                f"Received: max_chars_per_word={max_chars_per_word!r}."
            )
        self.splitter = WordSplitter(lowercase, strip_accents, split_cjk)
        self.lowercase = lowercase
        self.strip_accents = self.splitter.strip_accents
        self.split_cjk = split_cjk
        self.max_chars_per_word = max_chars_per_word
        self.special_ids = [ids[token] for token in SPECIAL_TOKENS]
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids

        self._pieces = _Pieces(ids, self.unk_id, max_chars_per_word)
        self._graphs: dict[tuple[str, bool, bool], Any] = {}  # by options, made at first use

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_graphs": {}}

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens."""
        return len(self.vocabulary)

    @property
    def vocabulary_hash(self) -> str:
        """The SHA-256 of the tokens joined with newlines, in hexadecimal."""
        return hashlib.sha256("\n".join(self.vocabulary).encode("utf-8")).hexdigest()

    @property
    def is_later(self) -> np.ndarray:
        """Which tokens of the vocabulary go on with a word, as `##s` does: bool (V,)."""
        return np.array([_is_later(token) for token in self.vocabulary])

    def get_config(self) -> dict[str, Any]:
        """The arguments without the vocabulary, which travels as a file."""
        return {
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
            "split_cjk": self.split_cjk,
            "max_chars_per_word": self.max_chars_per_word,
        }

    def save_vocabulary(self, path: str | os.PathLike[str]) -> None:
        """Writes the tokens to `path`, one a line."""
        path = Path(path)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_bytes("".join(f"{token}\n" for token in self.vocabulary).encode("utf-8"))
        os.replace(temporary, path)

    def __call__(self, texts: Any, special_tokens: bool = False) -> list[int] | list[list[int]]:
        """The ids of a text, or of each text of a list."""
        if isinstance(texts, (list, tuple, np.ndarray)):
            rows = [_as_text(text, f"row {row}") for row, text in enumerate(texts)]
            return [self._ids(text, special_tokens) for text in rows]
        return self._ids(_as_text(texts, "row 0"), special_tokens)

    def tokenize(self, text: str | bytes, special_tokens: bool = False) -> list[str]:
        """The pieces of one text, as strings."""
        ids = self._ids(_as_text(text, "text"), special_tokens)
        return [self.vocabulary[i] for i in ids]

    def encode(
        self,
        text: str | bytes,
        pair: str | bytes | None = None,
        max_length: int | None = None,
        special_tokens: bool = False,
    ) -> Encoding:
        """[CLS] text [SEP], or [CLS] text [SEP] pair [SEP], as the model reads it.

        With `max_length`, tokens are cut from the end: of the text, or of whichever of the
        two is longer at the time (of the pair where they are equal), as in the original code.
        """
        parts = [self._ids_and_spans(_as_text(text, "text"), special_tokens)]
        if pair is not None:
            parts.append(self._ids_and_spans(_as_text(pair, "pair"), special_tokens))
        room = _room(max_length, len(parts))
        if room is not None:
            lengths = kept_lengths([len(ids) for ids, _ in parts], room, min, max)
            parts = [(i[:n], o[:n]) for (i, o), n in zip(parts, lengths, strict=True)]

        token_ids, segment_ids, offsets = [self.cls_id], [0], [(0, 0)]
        for segment, (ids, spans) in enumerate(parts):
            token_ids += [*ids, self.sep_id]
            segment_ids += [segment] * (len(ids) + 1)
            offsets += [*spans, (0, 0)]
        return Encoding(token_ids, segment_ids, [self.vocabulary[i] for i in token_ids], offsets)

    def decode(self, ids: list[int]) -> str:
        """The pieces joined to words, and the words with spaces."""
        words: list[str] = []
        for i in ids:
            if not 0 <= i < len(self.vocabulary):
                raise ValueError(
                    f"`ids` must be in [0, {len(self.vocabulary)}). Received: an id of {i}."
                )
            token = self.vocabulary[i]
            if words and _is_later(token):
                words[-1] += token[2:]
            else:
                words.append(token)
        return " ".join(words)

    def _ids(self, text: str, special_tokens: bool) -> list[int]:
        if special_tokens:
            return self._ids_and_spans(text, special_tokens)[0]
        pieces = self._pieces
        return [i for word in self.splitter.words(text) for i in pieces[word][0]]

    def _ids_and_spans(
        self, text: str, special_tokens: bool
    ) -> tuple[list[int], list[tuple[int, int]]]:
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        base = 0
        for part in _SPECIAL_PATTERN.split(text) if special_tokens else [text]:
            if special_tokens and part in SPECIAL_TOKENS:
                ids.append(self._pieces.first[part])
                spans.append((base, base + len(part)))
            else:
                # Letters are numbered through the part, and the words spell them in order.
                sources = self.splitter.sources(part, base)
                first = 0
                for word in self.splitter.words(part):
                    word_ids, ends = self._pieces[word]
                    ids += word_ids
                    start = first
                    for end in ends:
                        spans.append((sources[start], sources[first + end - 1] + 1))
                        start = first + end
                    first = start
            base += len(part)
        return ids, spans

    def to_tf(
        self, strings: "tf.Tensor", core_ops: bool = False, special_tokens: bool = False
    ) -> "tf.RaggedTensor":
        """The ids of a batch of strings, as a TensorFlow graph.

        There are two, of the same ids. The one for `tf.data` calls TF-Text and is some ten
        times as fast; map batches rather than single strings. The one for exports is made of
        core TensorFlow ops with the tables as constants, so that a SavedModel needs neither
        assets nor another library; it's also what is used where TF-Text isn't installed, and for
        vocabularies with tokens too long for it.

        Args:
            strings: string (B,), UTF-8; invalid bytes are left out.
            core_ops: Whether the graph will be exported.
            special_tokens: As in a call.

        Returns:
            int32 RaggedTensor (B, None), without [CLS] and [SEP].
        """
        return self._in_graph("token_ids", strings, core_ops, special_tokens)

    def places_tf(self, strings: "tf.Tensor") -> "Places":
        """The ids of a batch of strings and where each piece stands, as a graph of core ops.

        The places are those that `encode` has as `offsets`. With `is_later` they make words: a
        word goes from a piece that isn't a later one to the end of the later ones after it.

        Args:
            strings: string (B,), UTF-8; invalid bytes are left out, and not counted.

        Returns:
            `ids`, `starts` and `ends`, int32 RaggedTensors (B, None), without [CLS] and [SEP].
        """
        return self._in_graph("places", strings, core_ops=True, special_tokens=False)

    def _in_graph(
        self, function: str, strings: "tf.Tensor", core_ops: bool, special_tokens: bool
    ) -> Any:
        import tensorflow as tf

        options = function, core_ops, special_tokens
        if options not in self._graphs:
            self._graphs[options] = self._make_graph(*options)
        return self._graphs[options](tf.convert_to_tensor(strings, tf.string))

    def _make_graph(self, function: str, core_ops: bool, special_tokens: bool) -> Any:
        import tensorflow as tf

        from keras_bert import wordpiece_graph

        form: ModuleType = wordpiece_graph
        fits = self._pieces.longest <= LONGEST_FOR_TENSORFLOW_TEXT
        if HAS_TENSORFLOW_TEXT and fits and not core_ops:
            from keras_bert import fast_wordpiece

            form = fast_wordpiece
        tables = form.make_tables(
            self.splitter, self._pieces.first, self._pieces.later,
            SPECIAL_TOKENS if special_tokens else (), self.unk_id, self.max_chars_per_word,
        )  # fmt: skip
        # The tables are numpy arrays: every graph that calls this holds its own constants.
        return tf.function(
            lambda strings: getattr(form, function)(strings, tables),
            input_signature=[tf.TensorSpec([None], tf.string)],
            autograph=False,
        )

    def encode_tf(
        self,
        strings: "tf.Tensor",
        max_length: int | None = None,
        pairs: "tf.Tensor | None" = None,
        core_ops: bool = False,
        special_tokens: bool = False,
    ) -> "dict[str, tf.Tensor]":
        """`encode` for a batch, as a TensorFlow graph.

        Args:
            strings: string (B,).
            max_length: The most tokens a row may have, with [CLS] and [SEP].
            pairs: string (B,), the second texts.
            core_ops: As in `to_tf`.
            special_tokens: As in a call.

        Returns:
            int32 (B, T) `token_ids`, `segment_ids` and `padding_mask`, T the longest row.
        """
        import tensorflow as tf

        from keras_bert.wordpiece_graph import model_inputs

        texts = [strings] if pairs is None else [strings, pairs]
        parts = [self.to_tf(x, core_ops, special_tokens) for x in texts]
        room, kept = _room(max_length, len(parts)), None
        if room is not None:
            lengths = [tf.cast(part.row_lengths(), tf.int32) for part in parts]
            kept = kept_lengths(lengths, room, tf.minimum, tf.maximum)
        return model_inputs(parts, kept, self.cls_id, self.sep_id, self.pad_id)


class _Pieces(dict[str, tuple[list[int], list[int]]]):
    """word -> (the ids of its pieces, the end of each); filled as words are met."""

    CAPACITY = 100_000  # words; about 30 MB

    def __init__(self, ids: dict[str, int], unk_id: int, max_chars_per_word: int):
        super().__init__()
        self.first = {token: i for token, i in ids.items() if not _is_later(token)}
        self.later = {token[2:]: i for token, i in ids.items() if _is_later(token)}
        self.longest = max(map(len, ids))
        self._unk_id = unk_id
        self._max_chars_per_word = max_chars_per_word

    def __reduce__(self) -> tuple[Any, ...]:
        ids = self.first | {f"##{piece}": i for piece, i in self.later.items()}
        return _Pieces, (ids, self._unk_id, self._max_chars_per_word)

    def __missing__(self, word: str) -> tuple[list[int], list[int]]:
        if len(word) > self._max_chars_per_word:
            return [self._unk_id], [len(word)]
        if len(self) >= self.CAPACITY:
            self.clear()
        pieces = self[word] = self._split(word)
        return pieces

    def _split(self, word: str) -> tuple[list[int], list[int]]:
        """The longest pieces, greedily from the start; [UNK] if there's none somewhere."""
        ids: list[int] = []
        ends: list[int] = []
        table, start, length = self.first, 0, len(word)
        while start < length:
            for end in range(min(length, start + self.longest), start, -1):
                if word[start:end] in table:
                    break
            else:
                return [self._unk_id], [length]
            ids.append(table[word[start:end]])
            ends.append(end)
            table, start = self.later, end
        return ids, ends


def _is_later(piece: str) -> bool:
    return piece.startswith("##") and piece != "##"


def _as_text(text: Any, where: str) -> str:
    if isinstance(text, bytes):
        return text.decode("utf-8", errors="ignore")
    if not isinstance(text, str):
        raise TypeError(f"`texts` must be str or UTF-8 bytes. Received: {where} is {text!r}.")
    return text


def _read_vocabulary(path: Path) -> list[str]:
    """Reads a `vocab.txt`. A line's number is its id, so blank lines inside keep theirs."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such vocabulary file; check the path.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: isn't UTF-8 ({error}); save it as UTF-8.") from None
    # On "\n" alone: vocabularies hold U+2028 and its like as tokens.
    tokens = [line.removesuffix("\r") for line in text.split("\n")]
    while tokens and not tokens[-1]:
        tokens.pop()
    return tokens


def _unique_ids(vocabulary: list[str], source: str) -> dict[str, int]:
    ids: dict[str, int] = {}
    for i, token in enumerate(vocabulary):
        if token and token in ids:
            raise InputError(
                f"{source}: line {i + 1} repeats the token {token!r} of line {ids[token] + 1}; "
                "remove one of them."
            )
        if token:
            ids[token] = i
    return ids


def _room(max_length: int | None, num_parts: int) -> int | None:
    """The tokens left for the texts beside [CLS] and a [SEP] for each."""
    if max_length is not None and max_length <= num_parts:
        raise ValueError(
            f"`max_length` must leave room for [CLS] and {num_parts} [SEP]. "
            f"Received: max_length={max_length}."
        )
    return None if max_length is None else max_length - 1 - num_parts


def kept_lengths(lengths: list, room: int, minimum: Any, maximum: Any) -> list:
    """What's left of one text, or of two when the longer is popped (of equals, the second)."""
    if len(lengths) == 1:
        return [minimum(lengths[0], room)]
    first, second = lengths
    second = minimum(second, maximum(room - first, room // 2))
    return [minimum(first, room - second), second]
