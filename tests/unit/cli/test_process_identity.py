from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from crossdock.cli.process_identity import ProcessIdentity

WAIT_S = 60.0


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield child
    child.kill()
    child.wait(WAIT_S)


def _identity(child: subprocess.Popen[bytes]) -> ProcessIdentity:
    identity = ProcessIdentity.of(child.pid)
    assert identity is not None
    return identity


def test_a_running_process_is_alive(sleeper: subprocess.Popen[bytes]) -> None:
    assert _identity(sleeper).is_alive()
    assert not _identity(sleeper).wait(0.0)


def test_an_ended_process_is_dead_before_it_is_reaped(sleeper: subprocess.Popen[bytes]) -> None:
    identity = _identity(sleeper)
    identity.send(signal.SIGKILL)
    assert identity.wait(WAIT_S)
    assert not identity.is_alive()


def test_another_process_with_the_pid_gets_no_signal(sleeper: subprocess.Popen[bytes]) -> None:
    earlier = replace(_identity(sleeper), start_ticks=_identity(sleeper).start_ticks - 1)
    assert not earlier.is_alive()
    assert earlier.wait(WAIT_S)
    earlier.send(signal.SIGKILL)
    assert not _identity(sleeper).wait(0.2)


def test_a_pid_that_is_free_names_nobody(sleeper: subprocess.Popen[bytes]) -> None:
    identity = _identity(sleeper)
    sleeper.kill()
    sleeper.wait(WAIT_S)
    assert not identity.is_alive()
    assert identity.wait(0.0)
    identity.send(signal.SIGKILL)
    assert ProcessIdentity.of(os.getpid()) is not None
