"""Starts the engine program as a child process and forwards what it says to the log."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from crossdock import _native as native
from crossdock.engine.formats import KvDtype, MlaPrefill
from crossdock.engine.link import Link, Process
from crossdock.errors import Code, CrossdockError, Reason
from crossdock.fabric.choice import Transport

_log = structlog.get_logger("crossdock.engine")

# A line of the engine's that is longer than this is cut into pieces.
_LOG_LINE_BYTES_MAX = 256 << 10
_LAST_WORDS_CHARACTERS_MAX = 400


@dataclass(frozen=True)
class EngineConfig:
    """What the engine is started with; its command line carries it as JSON. The defaults are those
    of the services' settings, too.
    """

    model_directory: str
    instance_id: str
    weight_dtype: str = "auto"
    weight_cache_directory: str = ""
    kv_dtype: KvDtype = "f32"
    tensor_parallel_size: int = 1
    mla_prefill: MlaPrefill = "absorbed"
    num_threads: int = 1
    pin_threads: bool = True
    kernels: str = "auto"
    kv_memory_bytes: int = 512 << 20
    token_budget: int = 2_048
    chunked_prefill: bool = True
    step_ms_max: int = 250
    num_sequences_max: int = 256
    transport: Transport = "auto"
    bind_interface: str = ""
    rdma_device: str = ""
    gid_index: str = "auto"
    huge_pages: bool = False
    verify_handoff: bool = False
    store: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


def engine_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the engine program is: CROSSDOCK_ENGINE, else beside the native module."""
    override = environ.get("CROSSDOCK_ENGINE")
    if override:
        path = Path(override)
    else:
        spec = importlib.util.find_spec("crossdock._native")
        origin = spec.origin if spec is not None else None
        folder = Path(origin).parent if origin else Path(__file__).parent.parent
        path = folder / "bin" / "crossdock-engine"
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise CrossdockError(
            Code.FAILED_PRECONDITION,
            f"the engine program is missing or cannot be executed: {path}; install the package "
            "again, or set CROSSDOCK_ENGINE to the program",
            Reason.NOT_FOUND,
        )
    return path


class EngineProcess:
    """A child process running the engine. Implements `Process`."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        # None: it ended already. The child's own kill would reap it behind the event loop's back,
        # and a plain pid may be another process by now.
        self._pidfd: int | None = None
        with contextlib.suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(child.pid)
        self._last_words = ""
        self._forward = asyncio.create_task(self._forward_log())

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def last_words(self) -> str:
        """See Process."""
        return self._last_words

    async def wait(self) -> int:
        code = await self._child.wait()
        await self._forward
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        return code

    def kill(self) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def _forward_log(self) -> None:
        stream = self._child.stderr
        assert stream is not None
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # longer than the limit: what was buffered is dropped
                continue
            if not line:
                return
            text = line.decode("utf-8", errors="replace").rstrip()
            if not _emit(text) and text:
                self._last_words = text[:_LAST_WORDS_CHARACTERS_MAX]


def _emit(line: str) -> bool:
    """Whether it is a JSON line, which keeps its fields; anything else is logged as an error."""
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        if line:
            _log.error("engine_output", line=line)
        return False
    event = str(fields.pop("event", "engine"))
    level = str(fields.pop("level", "info")).lower()
    emit = {"debug": _log.debug, "warning": _log.warning, "error": _log.error}.get(level, _log.info)
    emit(event, source="engine", **{f"engine_{key}": value for key, value in fields.items()})
    return True


class ProcessLauncher:
    """Launches the engine program with a fresh link. Implements `Launcher`."""

    def __init__(self, config: EngineConfig, program: Path) -> None:
        self._config = config
        self._program = program

    async def launch(self) -> tuple[Link, Process]:
        try:
            link = native.EngineLink()
        except native.StatusError as error:
            code, message = error.args
            raise CrossdockError(Code(code), message, Reason.NOT_READY) from error
        descriptors = (link.memory_fd, link.to_engine_fd, link.to_front_fd)
        # No preexec_fn: the child is made by vfork, which runs none of gRPC's fork handlers.
        child = await asyncio.create_subprocess_exec(
            self._program,
            "--link-fd",
            str(link.memory_fd),
            "--to-engine-fd",
            str(link.to_engine_fd),
            "--to-front-fd",
            str(link.to_front_fd),
            "--front-pid",
            str(os.getpid()),
            "--config",
            self._config.to_json(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=descriptors,
            start_new_session=True,  # Ctrl-C reaches the front alone, which drains
            limit=_LOG_LINE_BYTES_MAX,
        )
        return link, EngineProcess(child)
