from __future__ import annotations

from pathlib import Path

import pytest

from crossdock.cli.fleet_plan import (
    FleetOptions,
    kvstore_specs,
    router_spec,
    threads_per_engine,
    worker_specs,
)


def _value(program: tuple[str, ...], flag: str) -> str:
    return program[program.index(flag) + 1]


@pytest.mark.parametrize(
    ("num_cores", "num_engines", "expected"),
    [(2, 2, 1), (16, 2, 8), (16, 3, 5), (1, 4, 1), (8, 1, 8), (8, 0, 8)],
)
def test_cores_are_shared_out(num_cores: int, num_engines: int, expected: int) -> None:
    assert threads_per_engine(num_cores, num_engines) == expected


def test_every_engine_gets_the_model_and_its_threads() -> None:
    options = FleetOptions(Path("/models/m"), num_prefill=2, num_decode=1)
    specs = worker_specs(options, 12, "127.0.0.1:7")
    assert [spec.instance_id for spec in specs] == ["prefill-0", "prefill-1", "decode-0"]
    for spec in specs:
        assert spec.program[:2] == ("-m", f"services.{spec.role}")
        assert _value(spec.program, "--model") == "/models/m"
        assert _value(spec.program, "--threads") == "4"
        assert _value(spec.program, "--port") == "0"


def test_only_prefill_is_told_of_the_kvstore() -> None:
    specs = worker_specs(FleetOptions(Path("m")), 2, "127.0.0.1:7")
    assert _value(specs[0].program, "--kvstore") == "127.0.0.1:7"
    assert "--kvstore" not in specs[1].program


def test_without_a_kvstore_nothing_names_one() -> None:
    options = FleetOptions(Path("m"), kvstore=False)
    assert kvstore_specs(options) == []
    assert all("--kvstore" not in spec.program for spec in worker_specs(options, 2, None))


def test_what_is_not_asked_for_is_left_to_the_service() -> None:
    (prefill, _) = worker_specs(FleetOptions(Path("m")), 2, None)
    (store,) = kvstore_specs(FleetOptions(Path("m")))
    assert "--memory" not in store.program
    left = {"--kv-dtype", "--kv-memory", "--transport", "--log-level", "--step-ms-max"}
    left |= {"--parent-pid"}
    assert not (left | {"--no-chunked-prefill"}) & set(prefill.program)
    asked = FleetOptions(
        Path("m"),
        weight_dtype="int4",
        mla_prefill="expanded",
        kv_dtype="bf16",
        decode_kv_dtype="fp8_e4m3",
        kv_memory="1GiB",
        kvstore_memory="3GiB",
        parent_pid=7,
        transport="tcp",
        chunked_prefill=False,
        step_ms_max=0,
    )
    (prefill, decode) = worker_specs(asked, 2, None)
    assert _value(prefill.program, "--mla-prefill") == "expanded"
    assert _value(decode.program, "--mla-prefill") == "expanded"
    assert _value(prefill.program, "--weight-dtype") == "int4"
    assert _value(decode.program, "--weight-dtype") == "int4"
    assert _value(prefill.program, "--kv-dtype") == "bf16"
    assert _value(decode.program, "--kv-dtype") == "fp8_e4m3"
    assert _value(prefill.program, "--kv-memory") == "1GiB"
    assert _value(prefill.program, "--transport") == "tcp"
    assert _value(prefill.program, "--step-ms-max") == "0"
    assert "--no-chunked-prefill" in prefill.program
    (store,) = kvstore_specs(asked)
    assert _value(store.program, "--transport") == "tcp"
    assert _value(store.program, "--memory") == "3GiB"
    for spec in (store, prefill, decode, router_spec(asked, [], ["h:3"])):
        assert _value(spec.program, "--parent-pid") == "7"


def test_the_router_knows_its_workers_and_has_the_port() -> None:
    options = FleetOptions(Path("m"), port=50051, arguments={"router": ["--drain-timeout", "1"]})
    program = router_spec(options, ["h:1", "h:2"], ["h:3"]).program
    assert [program[i + 1] for i, part in enumerate(program) if part == "--prefill"] == [
        "h:1",
        "h:2",
    ]
    assert _value(program, "--decode") == "h:3"
    assert _value(program, "--port") == "50051"
    assert program[-2:] == ("--drain-timeout", "1")
