"""The router as a process: its ready line, start failures, drain and exit codes."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from crossdock.api.v1 import inference_pb2, inference_pb2_grpc
from crossdock.rpc.channel import open_channel
from crossdock.rpc.status import from_rpc_error
from tests.integration.router.fakes import WAIT_S, DecodeScript, Fabric, FakeDecode, FakePrefill


class Fleet:
    """Scripted instances in this process."""

    def __init__(self) -> None:
        self.fabric = Fabric()
        self.prefill = FakePrefill(self.fabric, "prefill-0")
        self.decode = FakeDecode(self.fabric, "decode-0")

    def flags(self, model_directory: Path) -> list[str]:
        return [
            *("--model", str(model_directory)),
            *("--prefill", self.prefill.instance.address),
            *("--decode", self.decode.instance.address),
        ]


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    made = Fleet()
    await made.prefill.start()
    await made.decode.start()
    yield made
    await made.prefill.instance.kill()
    await made.decode.instance.kill()


async def start(*flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services.router"),
        *flags,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def read_ready(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), WAIT_S)
    ready = json.loads(line)
    assert isinstance(ready, dict)
    return ready


async def finish(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Its exit code and what it wrote to stderr."""
    _, stderr = await asyncio.wait_for(process.communicate(), WAIT_S)
    return process.returncode, stderr.decode()


async def test_drain_lets_running_streams_finish(fleet: Fleet, model_directory: Path) -> None:
    fleet.decode.scripts.append(DecodeScript(hold_after=3))
    process = await start(*fleet.flags(model_directory), "--instance-id", "r-1")
    try:
        ready = await read_ready(process)
        assert (ready["event"], ready["role"]) == ("ready", "router")
        assert (ready["instance_id"], ready["pid"]) == ("r-1", process.pid)
        channel = open_channel(ready["address"])
        stub: Any = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.GenerateRequest(
            text="x", sampling=inference_pb2.SamplingParams(max_tokens=6)
        )
        call = aiter(stub.Generate(request, timeout=WAIT_S))
        first = await anext(call)
        process.send_signal(signal.SIGTERM)
        await _await_not_serving(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Tokenize(inference_pb2.TokenizeRequest(text="x"))
        error = from_rpc_error(caught.value)
        assert (error.code.name, error.reason) == ("UNAVAILABLE", "DRAINING")
        fleet.fabric.release.set()
        rest = [response async for response in call]
        assert sum(len(response.token_ids) for response in [first, *rest]) == 6
        assert rest[-1].HasField("finish")
        await channel.close(None)
        code, _ = await finish(process)
        assert code == 0
    finally:
        await _end(process)


async def test_sigterm_without_requests_and_without_instances(model_directory: Path) -> None:
    flags = ("--model", str(model_directory), "--decode", f"127.0.0.1:{_unused_port()}")
    process = await start(*flags)
    try:
        await read_ready(process)
        process.send_signal(signal.SIGTERM)
        code, _ = await finish(process)
        assert code == 0
    finally:
        await _end(process)


@pytest.mark.parametrize("flag", ["--port", "--http-port"])
async def test_port_in_use(fleet: Fleet, model_directory: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await start(*fleet.flags(model_directory), flag, str(port))
        code, stderr = await finish(process)
    assert code == 1
    last = stderr.strip().splitlines()[-1]
    assert last.startswith(f"crossdock router: cannot listen on 127.0.0.1:{port}")
    assert flag in last


@pytest.mark.parametrize("broken", ["missing", "tokenizer"])
async def test_model_directory_that_is_no_good(
    fleet: Fleet, model_directory: Path, tmp_path: Path, broken: str
) -> None:
    directory = tmp_path / "model"
    if broken == "tokenizer":
        shutil.copytree(model_directory, directory)
        (directory / "tokenizer.json").write_text("{")
    process = await start(*fleet.flags(directory))
    code, stderr = await finish(process)
    assert code == 1
    assert stderr.startswith("crossdock router: ")
    assert "Traceback" not in stderr
    assert str(directory) in stderr


async def test_bad_flags_are_exit_code_2() -> None:
    process = await start("--model", "m")
    code, stderr = await finish(process)
    assert code == 2
    assert "--decode" in stderr


async def _await_not_serving(channel: grpc.aio.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    async with asyncio.timeout(WAIT_S):
        while True:
            answer: Any = await health.Check(health_pb2.HealthCheckRequest())
            if answer.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                return
            await asyncio.sleep(0.01)


def _unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()
