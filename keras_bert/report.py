"""`report.html`: what a run did, in one file that opens anywhere and asks the network nothing."""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import numbers
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from keras_bert.files import write_text

Point = tuple[float, float]
Guess = tuple[str, str, str, float]

KINDS = ("text", "mask", "kept", "random")
# Told apart by colour-blind readers, and legible on white and on black.
COLORS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#ccaa33", "#44aacc")
AXIS_COLOR = "#888888"


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of text and numbers. Numbers are rounded for reading; text is shown as it is."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"`rows` must have one value for each of {len(self.columns)} columns. "
                    f"Received: row={row!r}."
                )


@dataclasses.dataclass(frozen=True)
class Curves:
    """Lines in one plot.

    `series` is name -> [(x, y), ...]; a NaN or an infinity leaves a gap.
    """

    title: str
    series: Mapping[str, Sequence[Point]]
    x_label: str
    y_label: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Examples:
    """Sentences with a masked-language model's guesses in place.

    A row is a list of (token, kind, guess, probability): `token` is the true one, `kind` is
    "text" (not asked; guess and probability are ignored), "mask" ([MASK] in the input), "kept"
    (asked, but the input shows the true token) or "random" (asked, the input shows another).
    """

    title: str
    rows: Sequence[Sequence[Guess]]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            for token, kind, _, _ in row:
                if kind not in KINDS:
                    raise ValueError(
                        f"`kind` must be one of {', '.join(KINDS)}. "
                        f"Received: kind={kind!r} of token={token!r}."
                    )


@dataclasses.dataclass(frozen=True)
class Matrix:
    """How often what was taken for what: a row for each true class, a column for each guess.

    The cells of a row are shaded by their share of it; the diagonal holds what's right.
    """

    title: str
    names: Sequence[str]
    counts: Sequence[Sequence[int]]
    note: str = ""

    def __post_init__(self) -> None:
        if {len(self.names)} != {len(self.counts), *map(len, self.counts)}:
            raise ValueError(
                f"`counts` must be a square of {len(self.names)} rows. "
                f"Received: {len(self.counts)} rows."
            )


@dataclasses.dataclass(frozen=True)
class Text:
    """Paragraphs, such as a question and the model's answer."""

    title: str
    paragraphs: Sequence[str]


Section = Table | Curves | Examples | Matrix | Text


def history_curves(
    title: str, history: Mapping[str, Sequence[float]], ending: str, y_label: str
) -> Curves:
    """The columns of a `history.csv` whose names end in `ending`, over the updates."""
    names = [name for name in history if name.endswith(ending)]
    series = {name: list(zip(history["update"], history[name], strict=True)) for name in names}
    return Curves(title, series, "update", y_label)


def write_report(
    path: str | os.PathLike[str], title: str, sections: Sequence[Section], subtitle: str = ""
) -> None:
    """Writes one self-contained HTML page, in one step.

    The page holds its style and draws its curves as inline SVG: no script, and nothing is
    requested from elsewhere. The same arguments give the same bytes. All text is escaped.

    Args:
        path: The file to write; its folder exists.
        title: The page's heading.
        sections: In the order they're shown.
        subtitle: A line under the heading, such as the command or the date.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    environment.tests["number"] = _is_number
    environment.tests["finite"] = math.isfinite
    page = environment.get_template("report.html").render(
        title=title,
        subtitle=subtitle,
        sections=[(type(section).__name__, section) for section in sections],
        colors=COLORS,
        draw=_svg,
    )
    write_text(path, page)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _number(value: Any) -> str:
    """1234567 -> "1,234,567"; 0.123456 -> "0.1235"; 12345.678 -> "12,346"."""
    if isinstance(value, numbers.Integral) or 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _svg(curves: Curves, salt: str) -> Any:
    """Draws the lines. Names and labels are the page's, in any script; numbers alone are here.

    `salt` makes the ids of the drawing's parts differ from those of the page's other drawings.
    """
    import markupsafe
    import matplotlib
    from matplotlib.figure import Figure

    # "none": digits stay text, so that the page chooses their font and colour.
    with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        # A Figure of its own: pyplot would choose a backend for the whole process.
        figure = Figure(figsize=(6, 2.8), layout="constrained")
        axes = figure.add_subplot()
        for points, color in zip(curves.series.values(), itertools.cycle(COLORS), strict=False):
            x, y = _drawable(points)
            marker = "o" if len(x) <= 30 else ""
            axes.plot(x, y, color=color, linewidth=1.5, marker=marker, markersize=3)
        axes.tick_params(colors=AXIS_COLOR)
        axes.grid(color=AXIS_COLOR, alpha=0.25, linewidth=0.5)
        axes.spines[:].set_visible(False)
        text = io.StringIO()
        unwanted = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=unwanted)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]  # Without the XML header, which names a DTD elsewhere.
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # Every drawing would use the same ids.
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    return markupsafe.Markup(svg)  # noqa: S704 - no text of the caller's is in it.


def _drawable(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """The points' x and y, both NaN, where a line breaks, at what isn't finite."""
    gap = (math.nan, math.nan)
    whole = [point if all(map(math.isfinite, point)) else gap for point in points]
    return [float(x) for x, _ in whole], [float(y) for _, y in whole]
