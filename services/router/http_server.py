"""uvicorn inside the router's own event loop: no signals, no logging of its own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import structlog
import uvicorn
from starlette.types import ASGIApp

from crossdock.errors import Code, CrossdockError, Reason

_log = structlog.get_logger("services.router.http")

_BACKLOG = 1024
# What a drained server still allows connections that only have to be closed, in seconds.
_CLOSE_GRACE_S = 1
# How often it is said that connections are refused: at the limit they come and go.
_TELL_EVERY_S = 60.0


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The composition root handles signals, for both servers."""
        yield


class _Listener(socket.socket):
    """Closes connections at once while the process has no descriptor for them.

    Left in the queue each would be reported, and tried again a second later, as often as the queue
    is long: the event loop of Python 3.11 goes on accepting. A descriptor in reserve takes them.
    """

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._reserve = _devnull()
        self._told_s = -_TELL_EVERY_S

    def accept(self) -> tuple[socket.socket, Any]:
        """As a socket's that does not block; BlockingIOError, too, for one that was refused."""
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._refuse()
            raise BlockingIOError from error

    def _refuse(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _TELL_EVERY_S:
            _log.warning("connections_refused", error="no descriptor is left; raise ulimit -n")
            self._told_s = now_s
        self._reserve.close()
        with contextlib.suppress(OSError):  # a thread was faster, or the caller has gone
            super().accept()[0].close()
        with contextlib.suppress(OSError):
            self._reserve = _devnull()

    def close(self) -> None:
        super().close()
        self._reserve.close()


def _devnull() -> BinaryIO:
    return Path(os.devnull).open("rb", buffering=0)


class HttpServer:
    """One listening HTTP server. Life: `start`, `stop`."""

    def __init__(self, app: ASGIApp) -> None:
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=_CLOSE_GRACE_S,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port. A port in use is an error that says so."""
        sock = _listen(host, port)
        bound = int(sock.getsockname()[1])
        self._task = asyncio.create_task(self._server.serve(sockets=[sock]))
        return bound

    async def stop(self) -> None:
        """Closes the port and the connections."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = _Listener(family)
    try:
        # Only so that a restart need not wait for old connections to time out; a port that
        # someone listens on is still refused.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host.strip("[]"), port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise CrossdockError(
            Code.FAILED_PRECONDITION,
            f"cannot listen on {host}:{port} for HTTP: {error.strerror}; choose another with "
            "--host and --http-port (0 takes a free one)",
            Reason.INVALID_FIELD,
            field="http_port",
        ) from error
    return sock
