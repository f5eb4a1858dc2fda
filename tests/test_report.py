"""The report is one safe, reproducible page in any script, whatever the numbers are."""

import html.parser
import math
import re
import sys

import numpy as np
import pytest

from keras_bert import report
from keras_bert.report import Curves, Examples, Matrix, Table, Text, write_report

VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(html.parser.HTMLParser):
    """Checks that tags nest; keeps tags, attributes and text."""

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def written(tmp_path, *sections, title="A run", **options):
    path = tmp_path / "report.html"
    write_report(path, title, sections, **options)
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    return path.read_text(encoding="utf-8")


def body(source):
    return source[source.index("<body>") : source.index("</html>")]


def plain(source):
    """The text that a reader sees, with single spaces."""
    page = Page(body(source))
    return " ".join("".join(page.texts).split())


CURVES = Curves(
    "Loss",
    {"train": [(u, 7 * math.exp(-u / 50)) for u in range(100)], "dev": [(0, 7.0), (99, 1.5)]},
    "updates",
    "nats",
    note="two minutes",
)
SECTIONS = [
    Text("Answer", ["Who?\nNobody."]),
    CURVES,
    Table("Scores", ["task", "accuracy"], [["MR", 0.5]]),
    Examples("Guesses", [[("a", "mask", "a", 0.9)]]),
    Matrix("Confusions", ["no", "yes"], [[3, 1], [0, 0]]),
    CURVES,
]


def test_one_self_contained_page(tmp_path):
    source = written(tmp_path, *SECTIONS, subtitle="python pretrain.py")
    page = Page(source)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(page.tags)
    assert not {"src", "href", "srcset"} & {name for name, _ in page.attributes}
    requests = r"@import|<!DOCTYPE svg|<\?xml|url\((?!#)"
    assert not re.search(requests, source)
    links = [value for name, value in page.attributes if name == "xlink:href"]
    assert all(value.startswith("#") for value in links)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids)), "two drawings share an id"
    assert {link[1:] for link in links} <= set(ids)
    assert {name for name in re.findall(r"url\(#([^)]*)\)", source)} <= set(ids)
    assert page.tags.count("h2") == 6
    assert "python pretrain.py" in plain(source)


def test_same_arguments_same_bytes(tmp_path):
    first = written(tmp_path, *SECTIONS)
    assert written(tmp_path, *SECTIONS) == first
    assert "<dc:date>" not in first


def test_global_state_of_matplotlib_is_left_alone(tmp_path):
    import matplotlib

    before = matplotlib.rcParams.copy()  # Reading "backend" from it would choose one.
    loaded = "matplotlib.pyplot" in sys.modules
    written(tmp_path, CURVES)
    assert matplotlib.rcParams.copy() == before
    assert ("matplotlib.pyplot" in sys.modules) == loaded


def test_everything_is_escaped(tmp_path):
    bad = "<script>alert('1')</script>&\"</svg>"
    source = written(
        tmp_path,
        Text(bad, [bad]),
        Table(bad, [bad], [[bad]], note=bad),
        Curves(bad, {bad: [(0, 1), (1, 2)]}, bad, bad, note=bad),
        Examples(bad, [[(bad, "text", "", 0), (bad, "mask", bad + "x", 0.5)]], note=bad),
        Matrix(bad, [bad], [[1]], note=bad),
        title=bad,
        subtitle=bad,
    )
    assert "script" not in Page(source).tags
    assert "<script" not in source
    assert plain(source).count(bad) >= 16


def test_any_script_is_text_of_the_page(tmp_path):
    source = written(
        tmp_path,
        Text("问答", ["北京在哪里。", "שלום"]),
        Curves("损失", {"验证集": [(0, 1), (1, 2)]}, "更新", "奈特"),
        Examples("例", [[("京", "mask", "家", 0.25)]]),
        title="预训练",
    )
    texts = "问答 北京在哪里。 שלום 损失 验证集 更新 奈特 例 京 家 预训练"
    for text in texts.split():
        assert text in source
    drawing = source[source.index("<svg xmlns") :]
    assert drawing[: drawing.index("</svg>")].isascii()


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(0, NAN)],
        [(0, INF), (1, -INF)],
        [(0, 1.0), (1, NAN), (2, 3.0), (NAN, 4.0), (INF, 5.0), (5, -INF)],
        [(0, 1.0)],
        [(0, 3e38), (1, -3e38)],
        [(i, NAN) for i in range(100)],
        [(np.int64(0), np.float32(1.5)), (np.int64(1), np.float32(NAN))],
    ],
)
def test_values_that_cannot_be_drawn(tmp_path, points):
    curves = Curves("Loss", {"train": points}, "x", "y")
    source = written(tmp_path, curves)
    drawing = body(source)
    drawing = drawing[drawing.index("<svg") : drawing.index("</svg>")].lower()
    assert "nan" not in drawing
    assert "inf" not in drawing


def test_no_curve_at_all(tmp_path):
    assert "Loss" in plain(written(tmp_path, Curves("Loss", {}, "x", "y")))


def test_curves_have_their_legend(tmp_path):
    source = written(tmp_path, CURVES)
    text = plain(source)
    for label in ["nats", "updates", "train", "dev", "two minutes"]:
        assert label in text
    assert body(source).count(report.COLORS[0]) >= 2  # In the drawing and in the legend.


def test_more_curves_than_colors(tmp_path):
    series = {f"run {i}": [(0, i), (1, i)] for i in range(2 * len(report.COLORS) + 1)}
    assert "run 12" in plain(written(tmp_path, Curves("Loss", series, "x", "y")))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (109482240, "109,482,240"),
        (0.123456, "0.1235"),
        (12345.678, "12,346"),
        (1.2e-5, "1.2e-05"),
        (np.float32(0.5), "0.5"),
        (np.int64(7), "7"),
        (NAN, "nan"),
        (-INF, "-inf"),
        (None, "\N{EN DASH}"),
        (True, "True"),
        ("0.12345", "0.12345"),
    ],
)
def test_table_values(tmp_path, value, shown):
    assert f">{shown}</td>" in written(tmp_path, Table("Scores", ["value"], [[value]]))


def test_table_rows_must_fit():
    with pytest.raises(ValueError, match="one value for each of 2 columns"):
        Table("Scores", ["a", "b"], [[1]])


def test_guesses(tmp_path):
    row = [
        ("the", "text", "", NAN),
        ("cat", "mask", "cat", 0.914),
        ("sat", "random", "slept", 0.3),
        ("here", "kept", "here", 0.999),
    ]
    source = written(tmp_path, Examples("Guesses", [row]))
    assert "the ✓ cat 91% random ✗ slept 30% sat kept ✓ here 100%" in plain(source)
    right, wrong = body(source).count("guess right"), body(source).count("guess wrong")
    assert (right, wrong) == (2, 1)


def test_matrix_is_shaded_by_the_share_of_a_row(tmp_path):
    source = written(tmp_path, Matrix("Confusions", ["no", "yes"], [[3, 1], [0, 0]]))
    cells = re.findall(r'<td class="number( on)?" style="--share: (\d+)%">(\d)</td>', source)
    assert cells == [(" on", "75", "3"), ("", "25", "1"), ("", "0", "0"), (" on", "0", "0")]
    with pytest.raises(ValueError, match="a square of 2 rows"):
        Matrix("Confusions", ["no", "yes"], [[1, 2]])


def test_unknown_kind():
    with pytest.raises(ValueError, match="`kind` must be one of text, mask, kept, random"):
        Examples("Guesses", [[("cat", "masked", "cat", 0.9)]])


def test_a_failed_write_leaves_the_old_page(tmp_path):
    old = written(tmp_path, Text("Old", []))
    with pytest.raises(TypeError):
        written(tmp_path, Table("New", ["a"], [[1]]), Curves("C", {"a": [(0, "x")]}, "x", "y"))
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == old
