"""What the HTTP server does when its process has no descriptor left."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

_NUM_CONNECTIONS = 64
_WAIT_S = 60.0
_PROGRAM = """
import asyncio, resource, sys
from crossdock.telemetry.logs import configure_logging
from services.router.http_server import HttpServer

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"answer"})

async def main():
    server = HttpServer(app)
    port = await server.start("127.0.0.1", 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()

configure_logging("info", role="router", instance_id="r")
asyncio.run(main())
"""


def test_connections_beyond_the_limit_are_closed_and_others_come_after_them() -> None:
    begin_s = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        address = ("127.0.0.1", port)
        many = [socket.create_connection(address, _WAIT_S) for _ in range(_NUM_CONNECTIONS)]
        assert many[-1].recv(1) == b"", "it is closed, and not left waiting"
        for connection in many:
            connection.close()
        assert _get(port) == b"answer"
        _, err = child.communicate(timeout=_WAIT_S)
    assert child.returncode == 0
    events = [json.loads(line)["event"] for line in err.splitlines()]
    assert set(events) == {"connections_refused"}
    assert len(events) <= 1 + (time.monotonic() - begin_s) // 60, "it is told once a minute"


def _get(port: int) -> bytes:
    """Until the server has noticed that the others are closed, it refuses."""
    deadline_s = time.monotonic() + _WAIT_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=_WAIT_S) as reply:
                return bytes(reply.read())
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)
