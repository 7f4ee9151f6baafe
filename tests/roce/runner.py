"""Runs checks one after the other, a line of verdict each, and writes them down as JUnit's XML."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

# Yields lines about what it saw, and raises where something is wrong.
Check = Callable[[], Iterator[str]]


class FailedError(Exception):
    """A check that failed, with what was expected and found."""


def expect(condition: object, otherwise: str) -> None:
    """`assert` that also holds with -O, and says what it is about."""
    if not condition:
        raise FailedError(otherwise)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one check; `problem` is empty where it passed."""

    name: str
    duration_s: float
    problem: str


@dataclass(slots=True)
class Runner:
    """Runs the checks whose names contain one of `wanted`; all of them when that is empty."""

    wanted: Sequence[str]
    verdicts: list[Verdict] = field(default_factory=list)

    def wants(self, name: str) -> bool:
        return not self.wanted or any(part in name for part in self.wanted)

    def run(self, name: str, check: Check) -> None:
        if not self.wants(name):
            return
        start = time.monotonic()
        problem = ""
        try:
            for line in check():
                print(f"      {line}", flush=True)
        except FailedError as error:
            problem = str(error)
        except Exception:  # noqa: BLE001 - whatever a check dies of is its verdict
            problem = traceback.format_exc()
        self.add(Verdict(name, time.monotonic() - start, problem))

    def add(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        mark = "FAIL" if verdict.problem else "ok  "
        print(f"{mark}  {verdict.duration_s:6.1f} s  {verdict.name}", flush=True)
        for line in verdict.problem.splitlines():
            print(f"      {line}", flush=True)

    def finish(self, results: Path | None) -> int:
        """Returns the exit code. No check at all is a failure, too."""
        failed = [verdict.name for verdict in self.verdicts if verdict.problem]
        num_checks = len(self.verdicts)
        print(f"roce: {num_checks} checks, {len(failed)} failed {' '.join(failed)}".rstrip())
        if results is not None:
            self._write(results)
        return 1 if failed or not num_checks else 0

    def _write(self, path: Path) -> None:
        suite = ET.Element("testsuite", name="roce", tests=str(len(self.verdicts)))
        for verdict in self.verdicts:
            seconds = f"{verdict.duration_s:.3f}"
            case = ET.SubElement(suite, "testcase", name=verdict.name, time=seconds)
            if verdict.problem:
                ET.SubElement(case, "failure").text = verdict.problem
        ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
