"""`docs/coming_from.md`: its code runs, its names exist, and both languages say the same."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import re

import keras
import numpy as np
import pytest
from conftest import TESTS

import keras_bert

ROOT = TESTS.parent
ENGLISH, CHINESE = (
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("coming_from.md", "coming_from.zh.md")
)
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
# The folders of the page that are Google's, which are read through TensorFlow.
GOOGLE = ("uncased_L-12_H-768_A-12", "chinese_L-12_H-768_A-12", "chinese_tuned", "multi_tuned")
VOCABULARY = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "and", "too", "all",
    "work", "no", "play", "makes", "jack", "dull", "boy", "how", "old", "are", "you", "?", "i",
    "am", "six", ".", ",", *"科学技术是第一生产力",
]  # fmt: skip


# A block's number -> what the comments in it say that it prints.
PRINTED = {0: "missing         0 tensors\n0.0\n", 3: "gelu_tanh\n"}


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def table_rows(page):
    """The code in each row of each table."""
    rows = [line for line in page.split("\n") if line.startswith("| ")]
    return [re.findall(r"`[^`]+`", row) for row in rows]


def tiny(task="pretraining", num_layers=1, activation="gelu"):
    config = keras_bert.BertConfig(
        vocabulary_size=len(VOCABULARY), num_layers=num_layers, num_heads=2, hidden_dim=8,
        intermediate_dim=16, max_sequence_length=64, activation=activation,
    )  # fmt: skip
    encoder = keras_bert.bert(config)
    model = encoder if task == "encoder" else getattr(keras_bert.tasks, task)(encoder)
    return keras_bert.Preset(config, encoder, keras_bert.WordPiece(VOCABULARY), model)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders that the page's code opens, each in its own format."""
    folder = tmp_path_factory.mktemp("coming_from")
    keras.utils.set_random_seed(0)
    keras_bert.save(tiny(), folder / "bert-base-uncased", format="huggingface")
    keras_hub = tiny("encoder", activation="gelu_tanh")
    keras_bert.save(keras_hub, folder / "bert_base_en_uncased", format="keras_hub")
    if HAS_TENSORFLOW:
        for name in GOOGLE:
            layers = 4 if name == "multi_tuned" else 1  # the code there asks for the last four
            keras_bert.save(tiny(num_layers=layers), folder / name, format="google")
        rng = np.random.default_rng(0)
        for name, classes in (("chinese", 2), ("multi", 3)):
            head = {"kernel": rng.normal(size=(8, classes)), "bias": rng.normal(size=classes)}
            np.savez(folder / f"{name}_tuned_head.npz", **head)
    return folder


@pytest.mark.parametrize("number", range(len(blocks(ENGLISH, "python"))))
def test_code_runs(number, folders, monkeypatch, capsys):
    """Block after block, each on its own, as a user would paste it."""
    block = blocks(ENGLISH, "python")[number]
    if not HAS_TENSORFLOW and any(name in block for name in GOOGLE):
        pytest.skip("needs TensorFlow, through which Google's files are read")
    monkeypatch.chdir(folders)
    names = {}
    exec(compile(block, f"coming_from.md, block {number}", "exec"), names)
    assert PRINTED.get(number, "") in capsys.readouterr().out
    if "tuned" in names:
        saved = keras_bert.load("film-reviews" if "texts" in names else "chinese_classifier")
        assert saved.labels == names["tuned"].labels
        for one, other in zip(names["tuned"].model.weights, saved.model.weights, strict=True):
            np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (one, other)))


def test_both_languages_show_the_same():
    for language, count in (("python", 6), ("py", 2)):
        assert blocks(ENGLISH, language) == blocks(CHINESE, language)
        assert len(blocks(ENGLISH, language)) == count
    assert table_rows(ENGLISH) == table_rows(CHINESE)
    assert ENGLISH.count("\n## ") == CHINESE.count("\n## ") == 8


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_links_lead_somewhere(page):
    def anchors(text):
        titles = re.findall(r"^#+ (.*)", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)
        return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}

    for target in re.findall(r"\]\(([^)]+)\)", page):
        path, _, anchor = target.partition("#")
        text = (ROOT / "docs" / path).read_text(encoding="utf-8") if path else page
        assert not anchor or anchor in anchors(text), target


def test_code_for_other_environments_can_be_parsed():
    for block in blocks(ENGLISH, "py"):
        ast.parse(block)


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=["english", "chinese"])
def test_names_of_ours_exist(page):
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    names = sorted(set(re.findall(r"\bkeras_bert((?:\.\w+)+)", prose)))
    assert len(names) > 20
    for name in names:
        *modules, last = name[1:].split(".")
        if not HAS_TENSORFLOW and (modules == ["data"] or last == "export_saved_model"):
            continue  # they import TensorFlow, which may not be there
        module = importlib.import_module(".".join(["keras_bert", *modules]))
        if not hasattr(module, last):
            importlib.import_module(f"keras_bert{name}")


def test_words_of_the_config_and_flags_of_the_recipes_exist():
    section = ENGLISH.split("## Google's BERT")[1].split("```")[0]
    ours = [row.rsplit("|", 2)[1] for row in section.split("\n") if row.startswith("| `--")]
    flags = {flag for cell in ours for flag in re.findall(r"--[a-z-]+", cell)}
    recipes = "".join(
        (ROOT / "recipes" / f"{name}.py").read_text(encoding="utf-8")
        for name in ("create_pretraining_data", "pretrain", "finetune_classifier")
    ) + (ROOT / "keras_bert" / "finetuning" / "flags.py").read_text(encoding="utf-8")
    assert len(flags) > 10
    for flag in flags:
        assert f"\n    {flag[2:].replace('-', '_')}: " in recipes, flag
    for field in dataclasses.fields(keras_bert.BertConfig):
        if field.name != "initializer_range":
            assert f"`{field.name}`" in ENGLISH, field.name
    for path in re.findall(r"`(recipes/\w+\.py)", ENGLISH):
        assert (ROOT / path).is_file()
