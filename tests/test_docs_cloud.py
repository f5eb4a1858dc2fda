"""`docs/cloud.md`, `docs/paper_run.md`: commands parse, and both languages hold the same ones."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import sys

import pytest
import tyro
from conftest import TESTS

ROOT = TESTS.parent
ENGLISH, CHINESE = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("cloud.md", "cloud.zh.md")
)
PAPER, PAPER_CHINESE = (
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("paper_run.md", "paper_run.zh.md")
)
RECIPE = re.compile(r"recipes/(\w+)\.py (.*)")


def blocks(page, language=r"\w*"):
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def commands(page):
    """(recipe, its arguments) of every command line of the page."""
    lines = (block.replace("\\\n", " ") for block in blocks(page, "bash"))
    return [match for block in lines for match in RECIPE.findall(block)]


def arguments_of(recipe, monkeypatch):
    """The recipe's class `Args`; a dataclass looks its module up by name."""
    spec = importlib.util.spec_from_file_location(recipe, ROOT / "recipes" / f"{recipe}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, recipe, module)
    spec.loader.exec_module(module)
    return module.Args


def test_both_languages_hold_the_same_code():
    assert blocks(ENGLISH) == blocks(CHINESE)
    assert blocks(PAPER) == blocks(PAPER_CHINESE)


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=["en", "zh"])
def test_every_command_parses(page, monkeypatch):
    found = commands(page)
    assert {recipe for recipe, _ in found} == {
        "pretrain", "finetune_classifier", "convert", "export",
    }  # fmt: skip
    classes = {recipe: arguments_of(recipe, monkeypatch) for recipe, _ in found}
    for recipe, arguments in found:
        tyro.cli(classes[recipe], args=shlex.split(arguments))


def test_the_papers_commands_parse(monkeypatch):
    found = commands(PAPER)
    assert {recipe for recipe, _ in found} == {
        "train_vocabulary", "create_pretraining_data", "pretrain",
    }  # fmt: skip
    for recipe, arguments in found:
        arguments = arguments.replace("$length", "128")
        tyro.cli(arguments_of(recipe, monkeypatch), args=shlex.split(arguments))


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=["en", "zh"])
def test_the_rest_of_the_code_is_well_formed(page):
    for block in blocks(page, "python"):
        ast.parse(block)
    [config] = re.findall(r"TF_CONFIG='(.*)'", page)
    config = json.loads(config)
    assert config["task"]["index"] < len(config["cluster"]["worker"])
