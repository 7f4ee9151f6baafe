"""The engine program as a child process: a script stands in for it."""

from __future__ import annotations

import asyncio
import json
import resource
from pathlib import Path

import pytest
import structlog

from crossdock.engine.process import EngineConfig, ProcessLauncher, engine_path
from crossdock.errors import Code, CrossdockError

CONFIG = EngineConfig(model_directory="/models/tiny", instance_id="decode-1", num_threads=3)


def _program(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "engine"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


async def test_the_command_line_and_the_descriptors_reach_it(tmp_path: Path) -> None:
    program = _program(tmp_path, f'printf "%s\\n" "$@" > {tmp_path}/arguments; echo hi >&"$4"')
    _, process = await ProcessLauncher(CONFIG, program).launch()
    assert await asyncio.wait_for(process.wait(), 60) in (0, 2)  # an eventfd takes no text
    arguments = (tmp_path / "arguments").read_text().splitlines()
    flags = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert set(flags) == {"--link-fd", "--to-engine-fd", "--to-front-fd", "--front-pid", "--config"}
    config = json.loads(flags["--config"])
    assert config["model_directory"] == "/models/tiny"
    assert config["num_threads"] == 3
    assert config["store"] is False


async def test_exit_codes_and_signals_are_told(tmp_path: Path) -> None:
    for body, code in (("exit 7", 7), ("kill -9 $$", -9)):
        _, process = await ProcessLauncher(CONFIG, _program(tmp_path, body)).launch()
        assert await asyncio.wait_for(process.wait(), 60) == code


async def test_killing_ends_it_and_is_harmless_afterwards(tmp_path: Path) -> None:
    _, process = await ProcessLauncher(CONFIG, _program(tmp_path, "exec sleep 60")).launch()
    process.kill()
    assert await asyncio.wait_for(process.wait(), 60) == -9
    process.kill()


async def test_a_kill_beside_the_exit_keeps_the_exit_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        _, process = await ProcessLauncher(CONFIG, _program(tmp_path, "exit 7")).launch()
        ending = asyncio.create_task(process.wait())
        while not ending.done():
            process.kill()
            await asyncio.sleep(0)
        assert ending.result() in (7, -9)
    assert not caplog.records


async def test_what_it_says_reaches_the_log(tmp_path: Path) -> None:
    body = """
echo '{"event": "loaded", "level": "warning", "layers": 2}' >&2
echo 'assertion failed' >&2
echo 'not for the ready line'
"""
    with structlog.testing.capture_logs() as logs:
        _, process = await ProcessLauncher(CONFIG, _program(tmp_path, body)).launch()
        await asyncio.wait_for(process.wait(), 60)
    assert {
        "event": "loaded",
        "log_level": "warning",
        "source": "engine",
        "engine_layers": 2,
    } in logs
    assert {"event": "engine_output", "log_level": "error", "line": "assertion failed"} in logs
    assert len(logs) == 2


async def test_its_own_lines_keep_what_they_say(tmp_path: Path) -> None:
    line = '{"level": "error", "event": "engine_failed", "message": "out of descriptors"}'
    with structlog.testing.capture_logs() as logs:
        _, process = await ProcessLauncher(
            CONFIG, _program(tmp_path, f"echo '{line}' >&2")
        ).launch()
        await asyncio.wait_for(process.wait(), 60)
    assert logs == [
        {
            "event": "engine_failed",
            "log_level": "error",
            "source": "engine",
            "engine_message": "out of descriptors",
        }
    ]


async def test_a_link_that_cannot_be_made_is_an_operating_error(tmp_path: Path) -> None:
    """Its memory is a file, of which there may be too little or too many."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, before[1]))
    try:
        with pytest.raises(CrossdockError, match="shared memory of 8393216") as raised:
            await ProcessLauncher(CONFIG, _program(tmp_path, "exit 0")).launch()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.code == Code.RESOURCE_EXHAUSTED


async def test_a_line_without_end_does_not_stop_the_log(tmp_path: Path) -> None:
    body = "head -c 700000 /dev/zero | tr '\\0' x >&2; echo >&2; echo done >&2"
    with structlog.testing.capture_logs() as logs:
        _, process = await ProcessLauncher(CONFIG, _program(tmp_path, body)).launch()
        await asyncio.wait_for(process.wait(), 60)
    assert logs[-1]["line"] == "done"


def test_the_path_may_be_named(tmp_path: Path) -> None:
    program = _program(tmp_path, "exit 0")
    assert engine_path({"CROSSDOCK_ENGINE": str(program)}) == program


def test_a_missing_program_is_a_clear_error(tmp_path: Path) -> None:
    missing = tmp_path / "nothing"
    with pytest.raises(CrossdockError, match=str(missing)):
        engine_path({"CROSSDOCK_ENGINE": str(missing)})
