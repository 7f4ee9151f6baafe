"""The two Soft-RoCE devices of the guest, and what can be done to them."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Side:
    """One device with the network device it stands on."""

    port: str
    interface: str
    address: str
    gid_index: int = 1  # 0 is link-local.


MTU = 4200
_PR_CAPBSET_DROP = 24
_CAP_IPC_LOCK = 14
FIRST = Side("rxe0:1", "veth0", "10.9.0.1")
SECOND = Side("rxe1:1", "veth1", "10.9.0.2")
# As the C++ tests read it.
CPP_TESTS = f"{FIRST.port} {SECOND.port} {FIRST.gid_index}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=30)


@contextmanager
def mtu(side: Side, value: int) -> Iterator[None]:
    """The interface of one side carries less for a while."""
    ip("link", "set", side.interface, "mtu", str(value))
    try:
        yield
    finally:
        ip("link", "set", side.interface, "mtu", str(MTU))


@contextmanager
def link_down() -> Iterator[None]:
    """The wire is down for a while; that takes both ends down."""
    _link("down")
    try:
        yield
    finally:
        _link("up")
        wait_until(lambda: all(map(is_active, (FIRST, SECOND))), 30, "links are up")


@contextmanager
def locked_memory(limit_bytes: int) -> Iterator[None]:
    """What processes that are started meanwhile may lock.

    Root's right to lock more is given up for good, by all that is started from now on.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_CAPBSET_DROP, _CAP_IPC_LOCK, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot give up CAP_IPC_LOCK")
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


def _link(state: str) -> None:
    subprocess.run(["sh", os.environ["CROSSDOCK_TEST_LINK"], state], check=True, timeout=30)


def is_active(side: Side) -> bool:
    device = side.port.partition(":")[0]
    path = Path("/sys/class/infiniband", device, "ports/1/state")
    return "ACTIVE" in path.read_text(encoding="utf-8")


def wait_until(condition: Callable[[], bool], bound_s: float, what: str) -> None:
    deadline = time.monotonic() + bound_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {bound_s:.0f} s: {what}")
        time.sleep(0.05)
