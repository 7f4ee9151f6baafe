"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from bench.figure import Figure
from crossdock.cli.console import table_console


def print_table(figures: Sequence[Figure]) -> None:
    """One row a figure, the limit or the peer beside it."""
    table = Table("bench", "case")
    for header in ("value", "unit", "limit", "ratio", "wanted", "against"):
        is_text = header in ("unit", "against")
        table.add_column(header, justify="left" if is_text else "right")
    table.add_column("")
    for figure in figures:
        table.add_row(
            figure.bench,
            figure.case,
            _number(figure.value),
            figure.unit,
            _number(figure.limit),
            _number(figure.ratio),
            _number(figure.wanted_ratio),
            figure.against,
            {None: "", True: "[green]met[/]", False: "[red]below[/]"}[figure.is_met],
        )
    table_console().print(table)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
