"""The C++ tests of the transfer layer over rc; each test is a verdict of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.roce.fabric import CPP_TESTS
from tests.roce.runner import Runner, Verdict

# Ten times what a program takes on two idle cores.
_BOUND_S = 420
# Writes, reads, commit behind a fence, refusals and broken queue pairs; then what kill -9, a stop
# and a restart of the peer do.
PROGRAMS = ("transfer_ucx_transport_test", "transfer_processes_test")


def run_programs(folder: Path, wanted: Sequence[str], runner: Runner) -> None:
    """Runs what of the programs in `folder` has one of the words of `wanted` in its name."""
    for program in PROGRAMS:
        names = [name for name in _list(folder / program) if runner.wants(_verdict_name(name))]
        if names or not wanted:
            for verdict in _run(folder / program, names):
                runner.add(verdict)


def _environ() -> dict[str, str]:
    return os.environ | {"CROSSDOCK_TEST_RDMA": CPP_TESTS}


def _verdict_name(test: str) -> str:
    """Of "Transports/RdmaTest.ReadsAgain/rc", which is every test's form."""
    return "rc." + test.split("/")[1]


def _list(program: Path) -> list[str]:
    printed = subprocess.run(
        [program, "--gtest_list_tests"],
        env=_environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    names = []
    suite = ""
    for line in printed.splitlines():
        if line.startswith("  "):
            names.append(suite + line.split("#")[0].strip())
        elif line.endswith("."):
            suite = line
    return [name for name in names if name.endswith("/rc")]


def _run(program: Path, names: Sequence[str]) -> list[Verdict]:
    if not names:
        return [Verdict(f"rc.{program.name}", 0.0, "the program has no test over rc")]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        arguments = [f"--gtest_filter={':'.join(names)}", f"--gtest_output=json:{report}"]
        start = time.monotonic()
        try:
            done = subprocess.run(
                [program, "--gtest_brief=1", *arguments],
                env=_environ(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_BOUND_S,
                check=False,
            )
            ended = f"exit code {done.returncode}\n{done.stdout}"
        except subprocess.TimeoutExpired as error:
            output = error.stdout or b""
            text = output.decode(errors="replace") if isinstance(output, bytes) else output
            ended = f"not done within {_BOUND_S} s\n{text}"
        if not report.is_file():
            return [Verdict(f"rc.{program.name}", time.monotonic() - start, ended)]
        suites = json.loads(report.read_text(encoding="utf-8"))["testsuites"]
    verdicts = []
    for suite in suites:
        for test in suite["testsuite"]:
            problem = "\n".join(failure["failure"] for failure in test.get("failures", ()))
            name = _verdict_name(f"{suite['name']}.{test['name']}")
            if test["status"] != "RUN":
                problem = "it did not run"
            verdicts.append(Verdict(name, float(test["time"].rstrip("s")), problem))
    return verdicts
