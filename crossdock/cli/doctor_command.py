"""`crossdock doctor`: what is missing on this machine, and how to get it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from crossdock.cli.doctor_checks import check_all
from crossdock.cli.finding import State

_MARKS: dict[State, str] = {
    "ok": "[green]ok     [/]",
    "note": "[yellow]note   [/]",
    "missing": "[red]missing[/]",
}


def doctor(
    rdma_device: Annotated[
        str, typer.Option(help="The port that services are to use, such as mlx5_0:1.")
    ] = "",
    gid_index: Annotated[
        int | None, typer.Option(min=0, help="The index of its GID; without: crossdock's choice.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
) -> None:
    """Look for what is missing on this machine; exit code 1 when a fleet cannot run."""
    findings = list(check_all(rdma_device, gid_index))
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        console = Console(soft_wrap=True, highlight=False)
        for finding in findings:
            console.print(_MARKS[finding.state], f"{finding.subject:<15}", end="")
            console.print(finding.fact, markup=False)
            if finding.remedy:
                console.print(f"{'':<23} [dim]->[/] ", end="")
                console.print(finding.remedy, markup=False)
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)
