"""The pairs of a fleet for people: how the KV bytes of each travel, and why not faster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table


def pair_table(reports: Iterable[dict[str, Any]]) -> Table:
    """One row for each side of each pair, of services' status replies as dictionaries."""
    table = Table(box=SIMPLE_HEAD)
    for header in ("of", "with", "state", "transport", "why"):
        table.add_column(header, overflow="fold")
    for header in ("handoffs", "sent", "read", "operations", "exposed"):
        table.add_column(header, justify="right")
    for report in reports:
        for peer in report["status"].get("peers", []):
            table.add_row(report["instance_id"], *_row(peer))
    return table


def _row(peer: dict[str, Any]) -> list[str]:
    transport = f"{peer['transport']}, staged" if peer["staged"] else peer["transport"]
    num_handoffs = int(peer["num_handoffs"])
    # The mean of what a first token waits for its transfer.
    exposed = f"{int(peer['exposed_ns']) / num_handoffs / 1e6:.2f} ms" if num_handoffs else ""
    return [
        peer["instance_id"],
        peer["state"],
        transport,
        peer["staged_because"] or peer["not_shared"],
        str(num_handoffs),
        f"{int(peer['bytes_written']) / 1e6:.1f} MB",
        f"{int(peer['bytes_read']) / 1e6:.1f} MB",
        str(peer["num_operations"]),
        exposed,
    ]
