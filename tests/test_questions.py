"""Questions on contexts: every file, every way to be refused, windows, labels and answers back."""

from __future__ import annotations

import json
import time

import keras
import numpy as np
import pytest
from test_cases import case  # noqa: F401 - a fixture

import keras_bert
from keras_bert import answers, inference
from keras_bert.data.questions import (
    Question,
    TrueAnswer,
    answer_tokens,
    read_questions,
    squad,
)
from keras_bert.errors import InputError
from keras_bert.layers.spans import SpansApart
from keras_bert.windows import answer_positions, question_rows, windows

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS),
              "?", "."]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return keras_bert.WordPiece(VOCABULARY)


@pytest.fixture(scope="module")
def preset(tokenizer):
    keras.utils.set_random_seed(0)
    config = keras_bert.BertConfig(
        vocabulary_size=len(VOCABULARY), num_layers=1, num_heads=2, hidden_dim=16,
        intermediate_dim=32, max_sequence_length=64, initializer_range=0.5,
    )  # fmt: skip
    encoder = keras_bert.bert(config)
    model = keras_bert.tasks.span_classifier(encoder)
    return keras_bert.Preset(config, encoder, tokenizer, model, settings={"stride": 16})


@pytest.fixture
def write(tmp_path):
    def write(*paragraphs):
        path = tmp_path / "questions.json"
        path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}), encoding="utf-8")
        return path

    return write


def paragraph(context, *questions):
    qas = [
        {"id": f"q{i}", "question": "who?",
         "answers": [{"text": text, "answer_start": start} for text, start in found]}
        for i, found in enumerate(questions)
    ]  # fmt: skip
    return {"context": context, "qas": qas}


def questions(count, longest=40):
    """Questions whose contexts are of up to `longest` letters, some without an answer."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(count):
        context = " ".join(rng.choice(list(LETTERS), rng.integers(5, longest)))
        start = 2 * int(rng.integers(0, len(context) // 2))
        found = (TrueAnswer(context[start], start),) if i % 3 else ()
        made.append(Question(f"q{i}", "who ?", context, found))
    return made


# Files.


def test_a_file(write):
    context = "Ann 😀 met Bob."
    path = write(paragraph(context, [("Bob", 10), ("Ann", 0)], []))
    first, second = read_questions(path)
    assert first == ("q0", "who?", context, (("Bob", 10), ("Ann", 0)))
    assert second.answers == ()
    data = json.loads(path.read_text())
    entry = data["data"][0]["paragraphs"][0]["qas"][0]
    entry |= {"is_impossible": True, "plausible_answers": entry.pop("answers"), "id": 7}
    path.write_text(json.dumps(data))
    assert read_questions(path)[0][::3] == ("7", ())


def test_offsets_that_are_a_little_off(case, write):  # noqa: F811
    """QA-03."""
    given, expected = case("QA-03")
    blocks = [paragraph(context, [(text, start)]) for context, text, start in given["cases"]]
    for i, block in enumerate(blocks):
        block["qas"][0]["id"] = f"case{i}"
    with pytest.warns(UserWarning, match=r"2 answers stand up to 3 .* case0, case1\.$"):
        found = read_questions(write(*blocks))
    assert [row.answers[0].start for row in found] == expected["repaired_start"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, r"questions.json, data\[0\].paragraphs\[0\].qas\[1\]: .* field 'id'"),
        ({"id": "q0"}, r"the id 'q0' occurs twice"),
        ({"question": "\ud83d?"}, r"question q1: question holds half of a surrogate pair"),
        ({"question": 3}, r"question q1: expected a field 'question' .* Received: 3"),
        ({"answers": None}, r"question q1: expected a field 'answers'"),
        ({"answers": [{"text": "", "answer_start": 0}]}, r"question q1: an answer is empty"),
        ({"answers": [{"text": "Bob"}]}, r"question q1: expected a field 'answer_start'"),
        ({"answers": [{"text": "Bob", "answer_start": True}]}, r"a field 'answer_start'"),
        ({"answers": [{"text": "Bob", "answer_start": 4}]},
         r"question q1: the answer 'Bob' isn't in the context at answer_start=4"),
        ({"answers": [{"text": "Zoe", "answer_start": 0}]}, r"the answer 'Zoe' isn't"),
        ({"answers": [{"text": "a", "answer_start": 6}]}, r"nor once within 3"),  # twice
        ({"answers": [{"text": "Ann", "answer_start": -4}]}, r"answer_start=-4"),
    ],
)  # fmt: skip
def test_refused(write, change, message):
    block = paragraph("Ann saw a Bob.", [("Ann", 0)], [])
    block["qas"][1] |= change
    with pytest.raises(InputError, match=message):
        read_questions(write(block))


def test_a_number_of_thousands_of_digits(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(f'{{"data": {"1" * 5000}}}', encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.json isn't in SQuAD's format"):
        read_questions(path)


def test_without_answers(write):
    block = paragraph("Ann saw Bob.", [("Ann", 0)], [])
    for entry in block["qas"]:
        del entry["answers"]
    with pytest.raises(InputError, match="question q0: expected a field 'answers'"):
        read_questions(write(block))
    assert [row.answers for row in read_questions(write(block), needs_answers=False)] == [None] * 2
    block["qas"][0]["is_impossible"] = True
    with pytest.raises(InputError, match="question q1: it has no field 'answers', and others"):
        read_questions(write(block), needs_answers=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"data": [\n}', r"questions.json, line 2: not JSON"),
        (b'{"data": \n"\xff"}', r"line 2: not UTF-8"),
        ("[]", r"expected a field 'data'"),
        ('{"data": []}', r"holds no questions"),
        ('{"data": [{"paragraphs": [3]}]}', r"paragraphs\[0\]: expected a field 'context'"),
        ("[" * 100000, r"nested too deeply"),
    ],
)
def test_not_squads_format(write, text, message):
    path = write()
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError, match=message):
        read_questions(path)


@pytest.mark.parametrize(
    ("name", "count", "unanswerable"),
    [
        ("extractive_qa/drcd/DRCD_dev.subset.json", 714, 0),
        ("extractive_qa/xquad/xquad.zh.json", 751, 0),
        ("extractive_qa/xquad/xquad.en.json", 751, 0),
        ("benchmark/squad_v1/train.json", 1866, 0),
        ("benchmark/squad_v2/train.json", 3974, 2108),
    ],
)
def test_real_files(shared, name, count, unanswerable):
    found = read_questions(shared(f"data/{name}"))
    assert len(found) == count
    assert sum(not row.answers for row in found) == unanswerable


def test_cmrc_has_five_answers_that_are_one_off(shared):
    path = shared("data/extractive_qa/cmrc2018/cmrc2018_trial.squad.json")
    names = ", ".join(f"TRIAL_210_QUERY_{i}" for i in range(5))
    with pytest.warns(UserWarning, match=f"5 answers stand up to 3 .* put right: {names}"):
        found = read_questions(path)
    assert len(found) == 1002
    by_id = {row.id: row for row in found}
    assert by_id["TRIAL_210_QUERY_0"].answers == (("俗名龙尖", 13),)
    for row in found:
        for text, start in row.answers:
            assert row.context[start : start + len(text)] == text


# Windows and labels.


def test_answers_of_awkward_contexts(case, shared):  # noqa: F811
    """QA-01."""
    given, expected = case("QA-01")
    tokenizer = keras_bert.WordPiece(shared("data/vocab/bert-base-uncased/vocab.txt"))
    kept = []
    for each in given["cases"]:
        encoding = tokenizer.encode(each["context"])
        answer = TrueAnswer(each["answer"], each["start"])
        first, last = answer_tokens(encoding.offsets[1:-1], answer)
        kept.append(encoding.tokens[1 + first : 2 + last])
    assert kept == expected["answer_tokens"]
    assert len(kept) == expected["n_kept"]


def test_a_question_that_leaves_no_room(case, tokenizer):  # noqa: F811
    """QA-04: refused at once, where the original code looped for ever."""
    given, expected = case("QA-04")
    started = time.perf_counter()
    for length in given["max_seq_length"]:
        row = Question("q7", "a " * given["question_tokens"], "b c d", ())
        if expected["result"][str(length)] == "ValueError":
            with pytest.raises(InputError, match=f"question q7: .* max_sequence_length={length}"):
                squad([row], tokenizer, 1, max_sequence_length=length)
        else:
            rows = question_rows(tokenizer, row.question, tokenizer(row.context), length)
            assert [r.window.stop - r.window.start for r in rows] == [1, 1, 1]
    assert time.perf_counter() - started < given["timeout_s"]


def test_windows_cover_every_token(case):  # noqa: F811
    """QA-05."""
    given, expected = case("QA-05")
    for each, spans in zip(given["cases"], expected["spans"]):
        size = each["max_seq"] - each["query"] - 3
        found = windows(each["doc"], size, each["stride"])
        assert [[w.start, w.stop - w.start] for w in found] == spans
        covered = {i for w in found for i in range(w.start, w.stop)}
        assert covered == set(range(each["doc"]))


def test_windows_without_the_answer(case, tokenizer):  # noqa: F811
    """QA-11."""
    given, expected = case("QA-11")
    context, question = [5] * given["doc_tokens"], " ".join(LETTERS[: given["question_tokens"]])
    length = given["question_tokens"] + 3 + given["spans"][0][1]
    rows = question_rows(tokenizer, question, context, length, stride=given["spans"][1][0])
    assert [[r.window.start, r.window.stop - r.window.start] for r in rows] == given["spans"]
    labels = [list(answer_positions(row, *given["answer"])) for row in rows]
    assert labels == expected["labels"]


def test_labels_spell_the_answer(tokenizer):
    made = questions(40, longest=150)
    found = {}
    dataset = squad(made, tokenizer, 8, max_sequence_length=64, stride=16, training=False)
    for inputs, labels, weights in dataset.as_numpy_iterator():
        assert inputs["token_ids"].shape[1] <= 64 and (weights["start"] == 1).all()
        for ids, start, end in zip(inputs["token_ids"], labels["start"], labels["end"]):
            assert bool(start) == bool(end)
            if start:
                assert start == end and tokenizer.sep_id in ids[:start]
            key = len(found)
            found[key] = VOCABULARY[ids[start]]
    answerable = [row for row in made if row.answers]
    spelt = [token for token in found.values() if token != "[CLS]"]
    assert len(found) > len(made)  # windows
    assert set(spelt) == {row.answers[0].text for row in answerable}
    assert len(spelt) >= len(answerable)


def test_logits_stay_in_float32():
    """In float16 what is outside would be -inf, and 0 times it is no number."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        layer = SpansApart()
    finally:
        keras.config.set_dtype_policy("float32")
    layer = SpansApart.from_config(layer.get_config())
    logits = np.array([[70000.0, 1.0001]], "float32")
    mask, starts = np.array([[1, 0]], "int32"), np.array([[0, -1]], "int32")
    found = keras.ops.convert_to_numpy(layer(logits, mask, starts))
    assert found.dtype == np.float32 and np.isfinite(found).all() and found[0, 0, 0] == 70000


def packed_model(model):
    starts = keras.Input((None,), dtype="int32", name="sequence_starts")
    apart = SpansApart(name="spans_apart")
    outputs = {n: apart(x, model.input["padding_mask"], starts) for n, x in model.output.items()}
    return keras_bert.training.Model(model.input | {"sequence_starts": starts}, outputs)


@pytest.mark.parametrize("layout", ["packed", "one_shape"])
def test_the_layout_doesnt_matter(preset, layout):
    """The loss of packed rows is that of each sequence alone, without padding."""
    made = questions(20, longest=20)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    preset.model.compile(loss=loss)
    total, count = 0.0, 0
    padded = squad(made, preset.tokenizer, 32, max_sequence_length=48, stride=16, training=False)
    for inputs, labels, _ in padded.as_numpy_iterator():
        outputs = preset.model.predict_on_batch(inputs)
        lengths = inputs["padding_mask"].sum(axis=1)
        count += len(lengths)
        for name in ("start", "end"):
            for logits, length, label in zip(outputs[name], lengths, labels[name]):
                odds = np.exp(logits[:length])
                total -= np.log(odds[label] / odds.sum())
    model = packed_model(preset.model)
    model.compile(loss=loss)
    batches = squad(made, preset.tokenizer, 12, max_sequence_length=48, stride=16, layout=layout,
                    row_multiple=2)  # fmt: skip
    rows = [len(inputs["token_ids"]) for inputs, *_ in batches]
    assert len(rows) == -(-count // 12) and all(n % 2 == 0 for n in rows) and sum(rows) < count
    loss, *_ = model.evaluate(batches, verbose=0)
    assert loss == pytest.approx(total / count, rel=1e-4)


# Answers.


def test_answers_are_substrings_in_every_window(preset):
    context = " ".join(["Ann", "sees  😀", "the\u200bcity", "of", "Zürich-West.", "中国"] * 12)
    made = [" ".join(LETTERS[:count]) + " ?" for count in range(20)]
    found = inference.readings(preset, made, [context] * 20, count=20)
    starts = set()
    for reading in found:
        assert len(reading.spans) == 20
        for span in reading.spans:
            assert span.answer == context[span.start : span.end] != ""
            starts.add(span.start)
        assert np.isfinite(reading.null_odds) and 0 < reading.nothing < 1
        assert sum(span.score for span in reading.spans) <= 1 + 1e-9
    assert max(starts) - min(starts) > 200
    best = keras_bert.answer(preset, made, [context] * 20)
    assert [each.spans[0] for each in found] == best
    odds = sorted(each.null_odds for each in found)
    preset.settings["no_answer_threshold"] = (odds[9] + odds[10]) / 2
    chosen = keras_bert.answer(preset, made, [context] * 20)
    del preset.settings["no_answer_threshold"]
    assert sum(each.answer == "" for each in chosen) == 10


def test_answers_are_never_nonsense(case):  # noqa: F811
    """QA-10: logits may be highest anywhere; an answer is a short span of the context."""
    _, expected = case("QA-10")
    assert "end<start" in expected["never"]
    rng = np.random.default_rng(0)
    for _ in range(1000):
        asked, shown, padding = rng.integers(1, 9, 3)
        logits = rng.normal(size=(2, asked + 2 + shown + 1 + padding)) * 10
        logits[:, rng.integers(0, asked + 2)] += 99  # [CLS], question or [SEP]
        logits[:, -rng.integers(1, padding + 2)] += 99  # the last [SEP] or padding
        context = LETTERS[:shown]
        offsets = [(i, i + 1) for i in range(shown)]
        starts, ends = logits[:, asked + 2 : asked + 2 + shown]
        scores = answers.span_scores(starts, ends, 4)
        found = answers.reading(context, offsets, scores, logits[:, 0].sum(), count=50)
        allowed = {context[i:j] for i in range(shown) for j in range(i + 1, min(i + 4, shown) + 1)}
        assert {span.answer for span in found.spans} == allowed
