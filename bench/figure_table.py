"""Figures as people read them: on a terminal, and in Markdown for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from bench.figure import Figure
from crossdock.cli.console import table_console

_HEADERS = ("bench", "case", "value", "unit", "limit", "ratio", "wanted", "against", "")
_TEXTS = frozenset({"bench", "case", "unit", "against", ""})
_VERDICTS = {None: "", True: "met", False: "below"}
_STYLES = {"met": "[green]met[/]", "below": "[red]below[/]"}


def print_table(figures: Sequence[Figure]) -> None:
    """One row a figure, the limit or the peer beside it."""
    table = Table()
    for header in _HEADERS:
        table.add_column(header, justify="left" if header in _TEXTS else "right")
    for figure in figures:
        *cells, verdict = _cells(figure)
        table.add_row(*cells, _STYLES.get(verdict, verdict))
    table_console().print(table)


def markdown(figures: Sequence[Figure]) -> str:
    """The same rows as a Markdown table."""
    rules = [":--" if header in _TEXTS else "--:" for header in _HEADERS]
    rows = [_HEADERS, rules, *map(_cells, figures)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cells(figure: Figure) -> tuple[str, ...]:
    return (
        figure.bench,
        figure.case,
        _number(figure.value),
        figure.unit,
        _number(figure.limit),
        _number(figure.ratio),
        _number(figure.wanted_ratio),
        figure.against,
        _VERDICTS[figure.is_met],
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
