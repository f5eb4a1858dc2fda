"""Classifiers and regressions: scores by name, targets folded in, long texts, both orders."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_bert
from keras_bert import text_tasks
from keras_bert.data.tables import LabelledText
from keras_bert.errors import InputError
from keras_bert.long_texts import encode_text
from keras_bert.text_logits import choice_logits, text_logits

WORDS = [f"w{i}" for i in range(20)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
TEXTS = ["w1", "w1 w2 w3", " ".join(WORDS), ""]


@pytest.fixture(scope="module")
def base():
    config = keras_bert.BertConfig(
        vocabulary_size=len(VOCABULARY), num_layers=1, num_heads=2, hidden_dim=8,
        intermediate_dim=16, max_sequence_length=16, initializer_range=0.5,
    )  # fmt: skip
    keras.utils.set_random_seed(0)
    encoder = keras_bert.bert(config)
    return keras_bert.Preset(config, encoder, keras_bert.WordPiece(VOCABULARY), encoder)


@dataclasses.dataclass
class Args:
    freeze_layers: int = 0
    reinitialize_layers: int = 0


def classifier(base, labels=("a", "b"), **settings):
    settings = {"max_sequence_length": 10} | settings
    return text_tasks.build(Args(), base, labels, settings)


def test_packed_form_shares_the_weights(base):
    preset, model = classifier(base)
    kernel = model.get_layer("label").kernel
    assert kernel is preset.model.get_layer("label").kernel
    assert preset.model.name == "text_classifier"
    assert "sequence_starts" not in preset.model.input


def test_a_classifier_goes_on_with_its_classes(base):
    """CLS-02: in its own order, which another one given contradicts; its head is kept."""
    preset, _ = classifier(base, labels=("b", "a"))
    assert text_tasks.order_of(["a", "b"], preset) == ["b", "a"]
    assert text_tasks.order_of(["b", "a"], preset, is_given=True) == ["b", "a"]
    assert text_tasks.order_of(["a", "c"], preset) == ["a", "c"]
    assert text_tasks.order_of(["a", "b"], base, is_given=True) == ["a", "b"]
    with pytest.raises(InputError, match="another order than the checkpoint's, b a"):
        text_tasks.order_of(["a", "b"], preset, is_given=True)
    own = preset.model.get_layer("label").get_weights()[0]
    several, _ = text_tasks.build(Args(), preset, ["b", "a"], {"multi_label": True})
    assert np.abs(several.model.get_layer("label").get_weights()[0] - own).max() > 1e-3
    again, _ = text_tasks.build(Args(), preset, ["b", "a"], preset.settings)
    np.testing.assert_allclose(text_logits(again, TEXTS), text_logits(preset, TEXTS), atol=1e-6)


def test_logits_are_those_of_classify(base):
    preset, _ = classifier(base)
    logits = text_logits(preset, TEXTS)
    found = keras_bert.classify(preset, TEXTS)
    for values, each in zip(logits, found):
        assert list(each.scores.values()) == pytest.approx(softmax(values), abs=1e-6)


def softmax(values):
    return np.exp(values - values.max()) / np.exp(values - values.max()).sum()


def test_windows_and_truncation(base):
    """The mean over windows is the mean of texts that are the windows."""
    preset, _ = classifier(base, window_stride=4)
    text = " ".join(WORDS)
    starts = [0, 4, 8, 12]
    parts = [" ".join(WORDS[start : start + 8]) for start in starts]
    single, _ = classifier(base)
    single.model.set_weights(preset.model.get_weights())
    expected = text_logits(single, parts).mean(axis=0)
    np.testing.assert_allclose(text_logits(preset, [text])[0], expected, atol=1e-6)
    assert len(encode_text(base.tokenizer, text, 10, stride=4)) == len(starts)

    tail = dataclasses.replace(single, settings=single.settings | {"truncate": "tail"})
    np.testing.assert_allclose(
        text_logits(tail, [text]), text_logits(single, [" ".join(WORDS[12:])]), atol=1e-6
    )


def test_both_orders(base):
    preset, _ = classifier(base, symmetric=True)
    one = dataclasses.replace(preset, settings={"max_sequence_length": 10})
    forth, back = text_logits(one, ["w1"], ["w2 w3"]), text_logits(one, ["w2 w3"], ["w1"])
    assert np.abs(forth - back).max() > 1e-4
    both = text_logits(preset, ["w1", "w2 w3"], ["w2 w3", "w1"])
    np.testing.assert_allclose(both[0], (forth + back)[0] / 2, atol=1e-6)
    np.testing.assert_allclose(both[0], both[1], atol=1e-6)


def test_choices_are_scored_as_the_model_does(base):
    encoder = keras_bert.bert(base.config)
    model = keras_bert.tasks.multiple_choice(encoder)
    preset = keras_bert.Preset(base.config, encoder, base.tokenizer, model)
    texts, choices = ["w1", "w2"], [("w3", "w4 w5"), ("w6", "w7")]
    encoded = [[base.tokenizer.encode(text, each) for each in own]
               for text, own in zip(texts, choices)]  # fmt: skip
    inputs = {name: np.zeros((2, 2, 8), "int32") for name in model.input}
    for i, own in enumerate(encoded):
        for k, each in enumerate(own):
            inputs["token_ids"][i, k, : len(each.token_ids)] = each.token_ids
            inputs["segment_ids"][i, k, : len(each.token_ids)] = each.segment_ids
            inputs["padding_mask"][i, k, : len(each.token_ids)] = 1
    expected = keras.ops.convert_to_numpy(model(inputs)["label"])
    np.testing.assert_allclose(choice_logits(preset, texts, choices), expected, atol=1e-5)


def test_two_heads_of_choices_on_one_encoder_answer_apart(base):
    encoder = keras_bert.bert(base.config)
    texts, choices = ["w1"], [("w3", "w4 w5")]
    logits = []
    for scale in (1.0, -1.0):
        model = keras_bert.tasks.multiple_choice(encoder)
        head = model.get_layer("label")
        head.set_weights([np.full_like(x, scale) for x in head.get_weights()])
        preset = keras_bert.Preset(base.config, encoder, base.tokenizer, model)
        logits.append(choice_logits(preset, texts, choices))
    np.testing.assert_allclose(logits[0], -logits[1], atol=1e-6)


def test_choices_are_classified(base):
    encoder = keras_bert.bert(base.config)
    model = keras_bert.tasks.multiple_choice(encoder)
    preset = keras_bert.Preset(base.config, encoder, base.tokenizer, model)
    texts, choices = ["w1", "w2"], [["w3", "w4 w5"], ["w6", "w7"]]
    found = keras_bert.classify(preset, texts, choices)
    for values, each in zip(choice_logits(preset, texts, choices), found):
        assert each.scores == pytest.approx(dict(zip("01", softmax(values))), abs=1e-6)
        assert each.label == str(values.argmax())
    assert keras_bert.classify(preset, "w1", choices[0]) == found[0]
    with pytest.raises(ValueError, match=r"all as long\. Received: 2 lists of 1, 2 for 2"):
        keras_bert.classify(preset, texts, [["w3"], ["w4", "w5"]])


def test_a_head_of_the_same_task_is_kept(base):
    """Of the same classes, or of a regression, which predicts the same numbers as before."""
    first, _ = classifier(base, labels=())
    text_tasks.fold_scale(first.model, (2000.0, 500.0))
    scale = (1000.0, 250.0)
    second, _ = text_tasks.build(Args(), first, (), first.settings, scale)
    standardised = (text_logits(first, TEXTS) - scale[0]) / scale[1]
    np.testing.assert_allclose(text_logits(second, TEXTS), standardised, atol=1e-4)

    first, _ = classifier(base)
    second, _ = text_tasks.build(Args(), first, ("a", "b"), first.settings)
    np.testing.assert_allclose(text_logits(second, TEXTS), text_logits(first, TEXTS), atol=1e-6)
    kernels = []
    for args, labels in ((Args(), ("b", "a")), (Args(reinitialize_layers=1), ("a", "b"))):
        other, _ = text_tasks.build(args, first, labels, first.settings)
        kernels.append(other.model.get_layer("label").get_weights()[0])
    tagger = keras_bert.tasks.token_classifier(first.encoder, 2)
    tagger = dataclasses.replace(first, model=tagger, labels=("a", "b"))
    other, _ = text_tasks.build(Args(), tagger, ("a", "b"), first.settings)
    kernels.append(other.model.get_layer("label").get_weights()[0])
    own = [layer.get_weights()[0] for layer in (first.model.get_layer("label"),
                                                tagger.model.get_layer("labels"))]  # fmt: skip
    assert not any(np.array_equal(kernel, each) for kernel in kernels for each in own)


def test_targets_are_folded_in(base):
    """What was trained on (y - mean) / std predicts y."""
    # A draw near -2 would make a sum near 0, whose digits are its terms' rounding.
    keras.utils.set_random_seed(0)
    preset, _ = classifier(base, labels=())
    before = text_logits(preset, TEXTS)
    scale = text_tasks.scale_of([1000.0, 3000.0])
    assert scale == (2000.0, 1000.0)
    text_tasks.fold_scale(preset.model, scale)
    np.testing.assert_allclose(text_logits(preset, TEXTS), before * 1000 + 2000, rtol=1e-5)
    assert keras_bert.classify(preset, "w1").score == pytest.approx(
        float(before[0, 0]) * 1000 + 2000, rel=1e-5
    )
    assert text_tasks.scale_of([2.0, 2.0]) == (2.0, 1.0)


def test_scores_are_by_name():
    """PAIR-05: another order of the classes changes nothing."""
    rng = np.random.default_rng(0)
    names = ["entailment", "neutral", "contradiction"]
    logits = rng.normal(size=(50, 3))
    true = [names[i] for i in rng.integers(0, 3, 50)]
    other = ["contradiction", "entailment", "neutral"]
    turned = logits[:, [names.index(name) for name in other]]
    first = text_tasks.score("class", logits, true, names)
    assert text_tasks.score("class", turned, true, other) == pytest.approx(first)
    assert text_tasks.predictions("class", turned, other) == text_tasks.predictions(
        "class", logits, names
    )


def test_scores_of_each_kind():
    logits = np.array([[2.0, 0.0], [0.0, 2.0], [0.0, 1.0], [3.0, 0.0]])
    found = text_tasks.score("class", logits, ["no", "yes", "no", "no"], ["no", "yes"])
    assert found["accuracy"] == 0.75
    assert found["f1"] == pytest.approx(2 / 3)
    assert set(found) == {*text_tasks.SCORES["class"], "loss"}
    several = text_tasks.score("labels", logits, [("a",), ("b",), (), ("a",)], ["a", "b"], 0.6)
    assert several["accuracy"] == 0.75
    assert set(several) == {*text_tasks.SCORES["labels"], "loss"}
    numbers = text_tasks.score("regression", logits[:, :1], [2.0, 0.0, 0.0, 3.0])
    assert numbers == pytest.approx({"pearson": 1.0, "spearman": 1.0, "loss": 0.0})
    wide = text_tasks.score("regression", logits[:, :1], [2.0, 0.0, 0.0, 5.0], std=2.0)
    assert wide["loss"] == pytest.approx(0.25)
    assert text_tasks.floor("class", ["no", "yes", "no"], ["no", "yes"], "accuracy") == 2 / 3
    assert text_tasks.floor("class", ["no", "yes", "no"], ["no", "yes"], "f1") == 0.5
    assert text_tasks.floor("class", ["no", "yes", "no"], ["no", "yes"], "matthews") == 0
    assert text_tasks.floor("regression", [1.0], [], "spearman") == 0


@pytest.mark.parametrize("metric", text_tasks.SCORES["class"])
@pytest.mark.parametrize("labels", ["ab", "abcd"])
def test_floor_of_classes(metric, labels):
    """The best of the scores of each class as the answer to everything."""
    true = ["a", "b", "b", "a", "b", *("c" for _ in labels[3:])]
    found = [
        text_tasks.score("class", np.tile(row, (len(true), 1)), true, labels)[metric]
        for row in np.eye(len(labels))
    ]
    assert text_tasks.floor("class", true, labels, metric) == pytest.approx(max(found))


@pytest.mark.parametrize("metric", text_tasks.SCORES["labels"])
def test_floor_of_several_labels(metric):
    """The best of the scores of every set of labels as the answer to everything."""
    true = [("a", "b"), ("a",), ("a", "c"), (), ("a", "b")]
    sets = [np.array(each) * 20.0 - 10.0 for each in np.ndindex(2, 2, 2)]
    found = [text_tasks.score("labels", np.tile(row, (5, 1)), true, "abc")[metric] for row in sets]
    assert text_tasks.floor("labels", true, "abc", metric) == pytest.approx(max(found))


def test_a_test_file_may_have_labels_in_some_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(text_tasks, "write_run_report", lambda *args: None)
    rows = [LabelledText("a", "one", 1), LabelledText(None, "two", 2), LabelledText("b", "x", 3)]
    logits, metrics = np.array([[2.0, 0.0]] * 3), {"accuracy": 0.0, "seeds": []}
    text_tasks.leave_run(
        tmp_path, "", None, metrics, "class", ["a", "b"], 0.5, (rows[::2], logits[::2]),
        (rows, logits),
    )  # fmt: skip
    assert metrics["test"]["accuracy"] == 0.5
    table = (tmp_path / "predictions.tsv").read_text(encoding="utf-8").split("\n")
    assert table[0] == "name\ttext\tlabel\tprediction\tscore\tscores"
    assert table[2].startswith("\ttwo\t\ta\t")


def test_metrics_that_a_kind_has():
    assert text_tasks.metric_of("class") == "accuracy"
    assert text_tasks.metric_of("class", usual="matthews") == "matthews"
    assert text_tasks.metric_of("regression", "pearson", "spearman") == "pearson"
    with pytest.raises(InputError, match="--metric must be one of pearson, spearman here"):
        text_tasks.metric_of("regression", "f1")


def test_confusions_of_many_classes():
    names = [f"c{i}" for i in range(30)]
    entries = [{"label": name, "prediction": name} for name in names]
    entries += [{"label": "c3", "prediction": "c7"}] * 2
    matrix = text_tasks.confusions(entries, names)
    assert list(matrix.names) == ["c3", "c7"]
    assert matrix.counts == [[1, 2], [0, 1]]
    assert matrix.note.startswith("28 classes")
