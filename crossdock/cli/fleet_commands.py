"""`crossdock up`, `down` and `status`: a local fleet of real service processes."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from typing import Annotated, Any, Final

import typer
from pydantic import ByteSize, Field, TypeAdapter, ValidationError
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from crossdock.cli import fleet_record
from crossdock.cli.client import instance_status
from crossdock.cli.console import table_console
from crossdock.cli.errors import FleetError
from crossdock.cli.fleet import STOP_TIMEOUT_S, Fleet, stop_recorded
from crossdock.cli.fleet_plan import FleetOptions
from crossdock.cli.fleet_record import DEFAULT_NAME, FleetRecord, ServiceRecord
from crossdock.cli.model_commands import resolve_or_fetch
from crossdock.cli.pair_table import pair_table
from crossdock.engine.formats import KvDtype, MlaPrefill
from crossdock.errors import CrossdockError
from crossdock.fabric.choice import Transport
from crossdock.models import DEFAULT_MODEL
from crossdock.models.packed import WeightDtype
from crossdock.telemetry.logs import LogLevel

_STATUS_TIMEOUT_S = 2.0
# Of memory, in bytes, as the services read it.
_SIZE: Final = TypeAdapter(Annotated[ByteSize, Field(gt=0)])
# How often a fleet in the foreground looks for a service that has died.
_WATCH_S = 0.5

NameOption = Annotated[str, typer.Option(help="The fleet's name; several may run at once.")]


def _check_size(value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return str(_SIZE.validate_python(value))
    except ValidationError as error:
        raise typer.BadParameter(f"{value!r} is not a size above 0, like 512MiB") from error


def up(
    prefill: Annotated[int, typer.Option(min=0, help="Prefill instances.")] = 1,
    decode: Annotated[int, typer.Option(min=1, help="Decode instances.")] = 1,
    model: Annotated[str, typer.Option(help="A directory, or a name to fetch.")] = DEFAULT_MODEL,
    weight_dtype: Annotated[
        WeightDtype, typer.Option(help="How weights are held; auto: as the checkpoint has them.")
    ] = "auto",
    kv_dtype: Annotated[KvDtype | None, typer.Option(help="Of the KV cache.")] = None,
    decode_kv_dtype: Annotated[
        KvDtype | None, typer.Option(help="Of decode instances, where it differs.")
    ] = None,
    mla_prefill: Annotated[
        MlaPrefill | None, typer.Option(help="How prompts attend in DeepSeek's latent attention.")
    ] = None,
    transport: Annotated[Transport | None, typer.Option(help="Of the KV blocks.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Per engine; without it, the cores shared out.")
    ] = None,
    kv_memory: Annotated[
        str | None, typer.Option(callback=_check_size, help="Per engine, like 512MiB.")
    ] = None,
    chunked_prefill: Annotated[
        bool, typer.Option(help="Cut long prompts, so that other requests go on meanwhile.")
    ] = True,
    step_ms_max: Annotated[
        int | None, typer.Option(min=0, help="What chunks keep a step within; 0: no bound.")
    ] = None,
    kvstore: Annotated[bool, typer.Option(help="Keep prefixes in a kvstore.")] = True,
    kvstore_memory: Annotated[
        str | None,
        typer.Option(callback=_check_size, help="What the kvstore keeps them in, like 1GiB."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="The router's gRPC port; 0: a free one.")
    ] = 0,
    http_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="The router's HTTP port; 0: a free one.")
    ] = 0,
    log_level: Annotated[LogLevel | None, typer.Option(help="Of every service.")] = None,
    name: NameOption = DEFAULT_NAME,
    detach: Annotated[bool, typer.Option("--detach", help="Leave it running and return.")] = False,
) -> None:
    """Start a local fleet: a router, prefill and decode instances, a kvstore."""
    options = FleetOptions(
        model_directory=resolve_or_fetch(model).resolve(),
        num_prefill=prefill,
        num_decode=decode,
        kvstore=kvstore,
        kvstore_memory=kvstore_memory,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        decode_kv_dtype=decode_kv_dtype,
        mla_prefill=mla_prefill,
        transport=transport,
        num_threads=threads,
        kv_memory=kv_memory,
        chunked_prefill=chunked_prefill,
        step_ms_max=step_ms_max,
        host=host,
        port=port,
        http_port=http_port,
        log_level=log_level,
    )
    fleet = Fleet(options, fleet_record.run_directory(name), name=name)
    _start(fleet)
    if not detach:
        _serve_until_stopped(fleet)


def down(
    name: NameOption = DEFAULT_NAME,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to drain; then what still runs is killed.")
    ] = STOP_TIMEOUT_S,
) -> None:
    """Stop a fleet: running requests finish, then the services end."""
    directory = fleet_record.run_directory(name)
    record = fleet_record.find(name)
    console = Console(stderr=True)
    with console.status(f"draining {name}"):
        killed = stop_recorded(record, timeout)
    fleet_record.remove(directory)
    if killed:
        raise FleetError(f"killed after {timeout:.0f} s without an end: {', '.join(killed)}")
    console.print(f"fleet {name} has ended")


def status(
    name: NameOption = DEFAULT_NAME,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Ask every service of a fleet how it is; exit code 1 when one does not serve."""
    record = fleet_record.find(name)
    reports = asyncio.run(_ask_all(record))
    if as_json:
        text = {"name": name, "model_directory": str(record.model_directory), "services": reports}
        typer.echo(json.dumps(text, indent=2))
    else:
        _print_status(record, reports)
    if not all(report["serving"] for report in reports):
        raise typer.Exit(1)


def _start(fleet: Fleet) -> None:
    console = Console(stderr=True)
    model = fleet.options.model_directory
    with console.status(f"loading {model.name} ...") as spinner:

        def on_ready(service: ServiceRecord, seconds: float) -> None:
            http = f"  http://{service.http_address}" if service.http_address else ""
            console.print(
                f"[green]ready[/] {service.instance_id:<10} {service.address:<21} "
                f"pid {service.process.pid:<7} {seconds:5.1f} s{http}",
                highlight=False,
                soft_wrap=True,
            )
            spinner.update(f"{service.instance_id} serves, waiting for the others ...")

        fleet.start(on_ready)
    assert fleet.record is not None
    console.print(
        f"fleet {fleet.name} serves {model.name}; logs in {fleet.directory}", soft_wrap=True
    )
    # The one line on stdout is for scripts.
    typer.echo(fleet.record.router.address)


def _serve_until_stopped(fleet: Fleet) -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stopped.set())
    console = Console(stderr=True)
    console.print("Ctrl-C drains and stops it")
    dead = None
    while not stopped.wait(_WATCH_S):
        # `crossdock down` from elsewhere ends the services in order; that is no failure.
        if fleet_record.load(fleet.directory) is None:
            return
        dead = fleet.first_death()
        if dead is not None and not _is_going_down(fleet):
            break
        dead = None
    with console.status("draining"):
        killed = fleet.stop()
    if dead is not None:
        raise FleetError(dead.describe_death())
    if killed:
        raise FleetError(f"killed, for they did not end: {', '.join(killed)}")


def _is_going_down(fleet: Fleet) -> bool:
    """Whether `crossdock down` is at work: every service that ended did so on purpose."""
    codes = [p.exit_code for p in fleet.processes if p.exit_code is not None]
    return all(code == 0 for code in codes)


async def _ask_all(record: FleetRecord) -> list[dict[str, Any]]:
    return list(await asyncio.gather(*(_ask(service) for service in record.services)))


async def _ask(service: ServiceRecord) -> dict[str, Any]:
    report: dict[str, Any] = {
        "role": service.role,
        "instance_id": service.instance_id,
        "address": service.address,
        "http_address": service.http_address,
        "metrics_address": service.metrics_address,
        "pid": service.process.pid,
        "alive": service.process.is_alive(),
        "serving": False,
        "error": "",
        "status": {},
    }
    if not report["alive"]:
        return {**report, "error": f"has ended; see {service.log}"}
    try:
        answer = await instance_status(service.role, service.address, _STATUS_TIMEOUT_S)
    except CrossdockError as error:
        return {**report, "error": str(error)}
    return {**report, "serving": bool(answer["ready"]) and not answer["draining"], "status": answer}


def _print_status(record: FleetRecord, reports: list[dict[str, Any]]) -> None:
    table = Table(box=SIMPLE_HEAD)
    for header in ("service", "address", "state", "pid", "engine"):
        table.add_column(header, overflow="fold")
    for header in ("blocks", "running", "waiting", "restarts"):
        table.add_column(header, justify="right")
    for report in reports:
        table.add_row(*_status_row(report))
    console = table_console()
    console.print(f"fleet {record.name}, model {record.model_directory.name}")
    console.print(table)
    pairs = pair_table(reports)
    if pairs.row_count:
        console.print(pairs)
    # What decides the bits of a result, the weights' type among it: alike where results should be.
    numerics: dict[str, list[str]] = {}
    for report in reports:
        if numerics_id := report["status"].get("numerics_id"):
            numerics.setdefault(numerics_id, []).append(report["instance_id"])
    for numerics_id, instances in numerics.items():
        console.print(f"numerics of {', '.join(instances)}: {numerics_id}", highlight=False)


def _status_row(report: dict[str, Any]) -> list[str]:
    answer = report["status"]
    state = "serving" if report["serving"] else report["error"] or "not serving"
    if answer.get("draining"):
        state = "draining"
    style = "green" if report["serving"] else "red"
    row = [report["instance_id"], report["address"], f"[{style}]{state}[/]", str(report["pid"])]
    if report["role"] == "router" or not answer:
        return row
    num_used = answer["num_blocks"] - answer["num_free_blocks"]
    return [
        *row,
        str(answer["engine_pid"] or ""),
        f"{num_used}/{answer['num_blocks']}",
        str(answer["num_running"]),
        str(answer["num_waiting"]),
        str(answer["num_engine_restarts"]),
    ]
