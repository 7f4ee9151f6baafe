"""`crossdock model`: what can be fetched, what is here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.table import Table

from crossdock import models
from crossdock.cli.console import table_console
from crossdock.models import Dtype, ModelNotFetchedError

app = typer.Typer(help="Models: fetch one by name, list what is there.", no_args_is_help=True)


@app.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help="A name of `crossdock model list`.")] = "",
    dtype: Annotated[Dtype | None, typer.Option(help="The weights' type.")] = None,
) -> None:
    """Fetch a model into the cache; nothing happens when it is there."""
    typer.echo(fetch(name or models.DEFAULT_MODEL, dtype))


@app.command("list")
def list_command() -> None:
    """List the models that are here or can be fetched."""
    table = Table("name", "dtype", "size")
    table.add_column("where", overflow="fold")
    for entry in models.list_models():
        size = f"{entry.size_bytes / 1e6:.0f} MB" if entry.fetched else ""
        where = str(entry.path) if entry.fetched else "[dim]not fetched[/]"
        table.add_row(entry.name, entry.dtype, size, where)
    table_console().print(table)


def resolve_or_fetch(name_or_path: str) -> Path:
    """The directory of the model; one that is known and not here is fetched first."""
    try:
        return models.resolve(name_or_path)
    except ModelNotFetchedError:
        return fetch(name_or_path, None)


def fetch(name: str, dtype: Dtype | None) -> Path:
    """Fetches with a progress bar on stderr, one line a stage."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    progress = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def report(stage: models.Stage, done: int, total: int) -> None:
        if stage == "done":
            return
        if stage not in tasks:
            progress.start()
            text = "waiting for another fetch" if stage == "wait" else f"{stage} {name}"
            tasks[stage] = progress.add_task(text, total=total or None)
        progress.update(tasks[stage], completed=done, total=total or None)

    try:
        return models.fetch(name, dtype=dtype, progress=report)
    finally:
        if tasks:
            progress.stop()
