"""Learning a WordPiece vocabulary from text."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from keras_bert.errors import InputError
from keras_bert.tokenizers import SPECIAL_TOKENS
from keras_bert.unicode_table import WordSplitter

ALPHABET_SHARE = 0.75  # of the vocabulary, at most; the rest is for longer pieces


def train_vocabulary(
    texts: Iterable[str],
    vocabulary_size: int,
    lowercase: bool = True,
) -> list[str]:
    """Learns a vocabulary from the words that `WordPiece` makes of the texts.

    First come the special tokens, then the single characters, then the pieces, most frequent
    first. Every character of the texts is there, unless they'd fill more than three quarters
    of the vocabulary; then the rarest are left out. The same texts give the same vocabulary.

    Args:
        texts: Lines, documents: any strings. They are read once, as a stream.
        vocabulary_size: The most tokens, the five special ones included.
        lowercase: As the tokenizer will be used.

    Returns:
        The tokens; a token's id is its index.

    Raises:
        InputError: There is no word in the texts, or tensorflow_text isn't installed.
        ValueError: `vocabulary_size` leaves no room beside the special tokens.

    References:
        - [Schuster and Nakajima, 2012](https://research.google/pubs/pub37842/); the learner is
          tensorflow_text's, top down: it keeps the frequent substrings that no longer piece
          explains.
    """
    if vocabulary_size <= len(SPECIAL_TOKENS):
        raise ValueError(
            f"`vocabulary_size` must be more than {len(SPECIAL_TOKENS)}, the special tokens. "
            f"Received: vocabulary_size={vocabulary_size}."
        )
    learner = _import_learner()  # before hours of reading
    splitter = WordSplitter(lowercase)
    words = _count_words(texts, splitter)
    if not words:
        raise InputError("The texts hold no word to learn a vocabulary from; check the files.")

    letters: Counter[str] = Counter()
    for word, count in words.items():
        for letter in word:
            letters[letter] += count
    alphabet = _alphabet(letters, splitter, vocabulary_size - len(SPECIAL_TOKENS))
    room = vocabulary_size - len(SPECIAL_TOKENS) - len(alphabet)
    pieces = _learn(learner, words, set(alphabet), room)
    return [*SPECIAL_TOKENS, *alphabet, *pieces]


def _import_learner() -> Any:
    try:
        from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner
    except ImportError as error:
        raise InputError(
            f"Learning a vocabulary needs tensorflow_text, which can't be imported ({error}); "
            "install it with `pip install tensorflow-text`, in the version of your TensorFlow."
        ) from None
    return learner


def _count_words(texts: Iterable[str], splitter: WordSplitter) -> Counter[str]:
    words: Counter[str] = Counter()
    for text in texts:
        words.update(splitter.words(text))
    return words


def _alphabet(letters: Counter[str], splitter: WordSplitter, room: int) -> list[str]:
    """The characters' own tokens, the most frequent characters first, then those with ##.

    A character that always stands alone, such as a comma or an ideograph, never goes on with
    a word and needs no ## form.
    """
    room = max(1, int(room * ALPHABET_SHARE))
    firsts: list[str] = []
    laters: list[str] = []
    for letter in sorted(letters, key=lambda letter: (-letters[letter], letter)):
        forms = 1 if splitter.stands_alone(letter) else 2
        if len(firsts) + len(laters) + forms > room:
            break
        firsts.append(letter)
        if forms == 2:
            laters.append(f"##{letter}")
    return firsts + laters


def _learn(learner: Any, words: Counter[str], alphabet: set[str], room: int) -> list[str]:
    """The learner's pieces of two letters and more, cut to `room`."""
    known = sorted(
        (word, count)
        for word, count in words.items()
        if len(word) > 1 and alphabet.issuperset(word)
    )
    if not known or room <= 0:
        return []
    in_words = {letter for word, _ in known for letter in word}
    learned = learner.learn(
        known,
        # The learner counts both forms of every letter that it meets; they are ours already.
        vocab_size=room + 2 * len(in_words),
        reserved_tokens=[],
        lower_thresh=2,
        max_unique_chars=len(in_words),
    )
    single = in_words | {f"##{letter}" for letter in in_words}
    return [piece for piece in learned if piece not in single][:room]
