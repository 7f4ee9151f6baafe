"""What a local fleet consists of: options in, command lines out. No processes, no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from crossdock.models.packed import WeightDtype

Role = Literal["router", "prefill", "decode", "kvstore"]


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """What the user asked for. None leaves a choice to the service."""

    model_directory: Path
    num_prefill: int = 1
    num_decode: int = 1
    kvstore: bool = True
    kvstore_memory: str | None = None  # Like "1GiB".
    weight_dtype: WeightDtype = "auto"
    kv_dtype: str | None = None
    decode_kv_dtype: str | None = None  # Where it differs.
    mla_prefill: str | None = None
    transport: str | None = None
    num_threads: int | None = None  # Per engine; None: the cores, shared out.
    kv_memory: str | None = None  # Per engine, like "512MiB".
    chunked_prefill: bool = True
    step_ms_max: int | None = None  # 0: no bound.
    host: str = "127.0.0.1"
    port: int = 0  # Of the router's gRPC server; 0: a free one.
    http_port: int = 0
    log_level: str | None = None
    # Of the process that starts the services, which end with it; 0: they do not.
    parent_pid: int = 0
    # More arguments for every service of a role.
    arguments: Mapping[Role, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One service process to start: `python PROGRAM`, which is `-m services.ROLE ...`."""

    role: Role
    instance_id: str
    program: tuple[str, ...]


def threads_per_engine(num_cores: int, num_engines: int) -> int:
    """The cores shared out, at least one each."""
    return max(1, num_cores // max(1, num_engines))


def kvstore_specs(options: FleetOptions) -> list[ServiceSpec]:
    """The kvstore starts first: prefill instances are told its address."""
    if not options.kvstore:
        return []
    arguments = [
        *_given("--memory", options.kvstore_memory),
        *_given("--transport", options.transport),
        *_bind_interface(options),
    ]
    return [_spec(options, "kvstore", "kvstore", arguments)]


def worker_specs(
    options: FleetOptions, num_cores: int, kvstore_address: str | None
) -> list[ServiceSpec]:
    """Prefill and decode instances; they start together."""
    num_threads = options.num_threads or threads_per_engine(
        num_cores, options.num_prefill + options.num_decode
    )
    engine = [
        *("--model", str(options.model_directory)),
        *("--threads", str(num_threads)),
        *("--weight-dtype", options.weight_dtype),
        *_given("--mla-prefill", options.mla_prefill),
        *_given("--kv-memory", options.kv_memory),
        *([] if options.chunked_prefill else ["--no-chunked-prefill"]),
        *_given("--step-ms-max", options.step_ms_max),
        *_given("--transport", options.transport),
        *_bind_interface(options),
    ]
    prefill = [
        *engine,
        *_given("--kv-dtype", options.kv_dtype),
        *_given("--kvstore", kvstore_address),
    ]
    decode = [*engine, *_given("--kv-dtype", options.decode_kv_dtype or options.kv_dtype)]
    return [
        *(_spec(options, "prefill", f"prefill-{i}", prefill) for i in range(options.num_prefill)),
        *(_spec(options, "decode", f"decode-{i}", decode) for i in range(options.num_decode)),
    ]


def router_spec(
    options: FleetOptions, prefill: Sequence[str], decode: Sequence[str]
) -> ServiceSpec:
    """The router, with the addresses of its workers; it starts last."""
    arguments = [
        *("--model", str(options.model_directory)),
        *("--http-port", str(options.http_port)),
        *(part for address in prefill for part in ("--prefill", address)),
        *(part for address in decode for part in ("--decode", address)),
    ]
    return _spec(options, "router", "router", arguments)


def _bind_interface(options: FleetOptions) -> list[str]:
    """A fleet on loopback moves its blocks there too, and offers them to no network."""
    loopback = options.host == "localhost" or options.host.startswith("127.")
    return ["--bind-interface", "lo"] if loopback else []


def _given(flag: str, value: str | int | None) -> list[str]:
    return [] if value is None else [flag, str(value)]


def _spec(
    options: FleetOptions, role: Role, instance_id: str, arguments: Sequence[str]
) -> ServiceSpec:
    common = [
        *("--host", options.host),
        *("--port", str(options.port if role == "router" else 0)),
        *("--instance-id", instance_id),
        *_given("--log-level", options.log_level),
        *_given("--parent-pid", options.parent_pid or None),
    ]
    more = options.arguments.get(role, ())
    program = ("-m", f"services.{role}", *common, *arguments, *more)
    return ServiceSpec(role, instance_id, program)
