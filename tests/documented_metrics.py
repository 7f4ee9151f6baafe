"""docs/metrics.md as values, beside what is really exported."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.metrics_core import Metric

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
# Of a process, by names that are the same everywhere.
_PROCESS = re.compile(r"(crossdock_engine_)?process_")


@dataclass(frozen=True)
class Row:
    """A metric as its row says it is."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def documented_rows() -> set[Row]:
    """Every row of the page's tables of metrics."""
    found = set()
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `crossdock_") and len(cells) == 4:
            labels = tuple(cells[2].split(", ")) if cells[2] else ()
            found.add(Row(cells[0].strip("`"), cells[1], labels, cells[3]))
    return found


def documented_outcomes() -> set[str]:
    """The outcomes of handoffs that the page explains."""
    section = PAGE.read_text(encoding="utf-8").partition("## Outcomes of handoffs")[2]
    section = section.partition("\n## ")[0]
    return set(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE))


def exported_rows(families: Iterable[Metric]) -> set[Row]:
    """What a scrape shows, in the form of the page's rows."""
    return {
        Row(
            family.name + ("_total" if family.type == "counter" else ""),
            family.type,
            tuple(sorted({label for s in family.samples for label in s.labels} - {"le"})),
            family.documentation,
        )
        for family in families
        if not _PROCESS.match(family.name)
    }
