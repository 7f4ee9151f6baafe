"""Names as Prometheus wants them: base units, the suffix that tells a counter."""

from __future__ import annotations

import re

import pytest

from tests.documented_metrics import PAGE, Row, documented_outcomes, documented_rows

ROWS = sorted(documented_rows(), key=lambda row: row.name)
# Units that are not base units, and types, which the name does not say.
_WRONG_WORDS = {
    *("ns", "us", "ms", "milliseconds", "microseconds", "minutes", "bits", "kb", "mb", "kib"),
    *("mib", "percent", "num", "count", "gauge", "counter", "histogram"),
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_name_follows_the_rules(row: Row) -> None:
    assert re.fullmatch(r"crossdock(_[a-z0-9]+)+", row.name)
    assert row.name.endswith("_total") == (row.kind == "counter")
    assert not _WRONG_WORDS & set(row.name.split("_"))
    assert row.kind in ("counter", "gauge", "histogram")
    assert row.kind != "histogram" or row.name.endswith(("_seconds", "_bytes", "_tokens"))
    assert all(re.fullmatch(r"[a-z][a-z_]*", label) for label in row.labels)
    assert row.text.endswith(".")
    for unit in ("bytes", "seconds"):
        words = row.name.removesuffix("_total").split("_")
        assert unit not in words or words[-1] == unit or "per" in words, "the unit comes last"


def test_the_page_lists_every_counter_of_the_table() -> None:
    header = PAGE.parents[1] / "native/include/crossdock/handoff/lifecycle.h"
    names = re.findall(r'NamedHandoffCounter\{"([a-z_]+)"', header.read_text(encoding="utf-8"))
    assert sorted(names) == sorted(documented_outcomes())


def test_pages_name_metrics_that_exist() -> None:
    """A name that goes on as a family (`crossdock_fabric_...`, `_*`) is none."""
    known = {row.name for row in ROWS}
    unknown = [
        f"{page.name}: {name}"
        for page in PAGE.parent.rglob("*.md")
        for name in re.findall(
            r"\b(crossdock_[a-z_]*[a-z])(?![a-z_]*[*.]{1,3}`)", page.read_text(encoding="utf-8")
        )
        if name not in known and not re.search(r"_process$|_native$", name)
    ]
    assert not unknown
