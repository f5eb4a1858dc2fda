"""Learning a vocabulary."""

import os
import subprocess
import sys

import pytest

from keras_bert.data.vocabulary import train_vocabulary
from keras_bert.errors import InputError
from keras_bert.tokenizers import SPECIAL_TOKENS, WordPiece

pytest.importorskip("tensorflow_text", reason="the learner is tensorflow_text's")

TEXTS = [
    "The walker walked, walking on walls.",
    "Talkers talk of talking walls; the talk walked on!",
    "Été à Zürich: the walls of 2024.",
] * 5


def test_specials_come_first_then_every_character():
    vocabulary = train_vocabulary(TEXTS, 120)
    assert vocabulary[:5] == list(SPECIAL_TOKENS)
    assert len(vocabulary) <= 120
    assert len(set(vocabulary)) == len(vocabulary)
    tokenizer = WordPiece(vocabulary)
    assert tokenizer.unk_id not in tokenizer(" ".join(TEXTS))
    assert {"walls", "talk", "the"} <= set(vocabulary)


def test_what_stands_alone_has_no_later_form():
    vocabulary = train_vocabulary(["天气 很好, 天气 abc abc"] * 3, 60)
    assert {"天", "气", ","} <= set(vocabulary)
    assert not {"##天", "##,"} & set(vocabulary)
    assert {"a", "##a"} <= set(vocabulary)


def test_case_is_kept_when_asked():
    cased = train_vocabulary(TEXTS, 120, lowercase=False)
    assert "T" in cased
    assert "É" in cased
    assert "T" not in train_vocabulary(TEXTS, 120)


@pytest.mark.parametrize("size", [6, 12, 30, 50])
def test_size_is_a_maximum_and_frequent_characters_stay(size):
    vocabulary = train_vocabulary(TEXTS, size)
    assert len(vocabulary) <= size
    assert "," in vocabulary or "l" in vocabulary or size < 9


def test_same_texts_same_vocabulary_in_any_process():
    code = (
        "from keras_bert.data.vocabulary import train_vocabulary\n"
        f"print(ascii(train_vocabulary({TEXTS!r}, 90)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, encoding="utf-8", check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert result.stdout.strip().splitlines()[-1] == ascii(train_vocabulary(TEXTS, 90))


@pytest.mark.parametrize("texts", [[], ["", " \n\u200b"]])
def test_no_words_is_an_input_error(texts):
    with pytest.raises(InputError, match="no word"):
        train_vocabulary(texts, 100)


def test_no_room_is_a_value_error():
    with pytest.raises(ValueError, match="vocabulary_size=5"):
        train_vocabulary(TEXTS, 5)


def test_missing_tensorflow_text_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text.tools.wordpiece_vocab", None)
    with pytest.raises(InputError, match="pip install tensorflow-text"):
        train_vocabulary(TEXTS, 100)
