"""`crossdock model`: what can be fetched, what is here, what other types of weights cost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.table import Table

from crossdock import models
from crossdock.cli.console import table_console
from crossdock.models import Dtype, ModelNotFetchedError
from crossdock.models.conversion import Conversion, convert, held_out_text
from crossdock.models.packed import WEIGHT_DTYPES
from crossdock.tokenization import Tokenizer

app = typer.Typer(help="Models: fetch one by name, list what is there.", no_args_is_help=True)


class Target(StrEnum):
    """What weights can be converted to: as WeightDtype, which Typer takes in no list."""

    F32 = "f32"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"


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


@app.command("convert")
def convert_command(
    model: Annotated[str, typer.Argument(help="A directory, or a name to fetch.")] = "",
    to: Annotated[
        list[Target] | None, typer.Option(help="May be repeated; without it, every type.")
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="UTF-8; without it, the model's or Python's own."
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=0, help="Of the text, for the perplexity; 0: none is measured.")
    ] = 16_384,
    threads: Annotated[int, typer.Option(min=0, help="0: one for every usable core.")] = 0,
) -> None:
    """Quantise a model into the cache, and say how large each type is and how well it predicts."""
    directory = resolve_or_fetch(model or models.DEFAULT_MODEL)
    content = text.read_text(encoding="utf-8") if text else held_out_text(directory)
    token_ids = Tokenizer.load(directory).encode(content)[:tokens]
    num_threads = threads or len(os.sched_getaffinity(0))
    # The checkpoint's own comes first: what the others are compared with.
    dtypes = [dtype for dtype in WEIGHT_DTYPES if dtype == "auto" or not to or dtype in to]
    conversions: list[Conversion] = []
    with Console(stderr=True).status("") as spinner:
        for dtype in dtypes:
            if dtype in (conversion.dtype for conversion in conversions):
                continue
            spinner.update(f"{directory.name}: {dtype}, {len(token_ids)} tokens")
            conversions.append(convert(directory, dtype, token_ids, num_threads))
    table_console().print(conversion_table(conversions))


def conversion_table(conversions: Sequence[Conversion]) -> Table:
    """The first is the checkpoint's own."""
    table = Table("weights")
    for header in ("memory", "on disk", "bits a weight", "unchanged", "perplexity", "against own"):
        table.add_column(header, justify="right")
    own = conversions[0].perplexity
    for conversion in conversions:
        perplexity = conversion.perplexity
        table.add_row(
            conversion.dtype,
            f"{conversion.memory_bytes / 1e6:.1f} MB",
            f"{conversion.disk_bytes / 1e6:.1f} MB" if conversion.disk_bytes else "not kept",
            f"{conversion.bits_per_weight:.2f}",
            f"{conversion.num_exact / conversion.num_weights:.2%}",
            "" if perplexity is None else f"{perplexity:.4f}",
            f"{perplexity / own - 1:+.3%}" if perplexity and own else "",
        )
    return table


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
