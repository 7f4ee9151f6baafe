"""The suite that `make roce-test` runs in the guest: `python -m tests.roce --programs FOLDER`.

Needs root, and the two Soft-RoCE devices that the guest is made with.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.roce import counters, doctor, handoff, writer
from tests.roce.programs import run_programs
from tests.roce.runner import Check, Runner

_CHECKS: dict[str, Check] = {
    "doctor.healthy": doctor.healthy,
    "doctor.wrong_index": doctor.wrong_index,
    "doctor.mtu_mismatch": doctor.mtu_mismatch,
    "doctor.link_down": doctor.down,
    "doctor.little_locked_memory": doctor.little_locked_memory,
    "writer.independent": writer.independent_writer,
    "counters.exported": counters.exported,
    "counters.netdev_statistics": counters.netdev_statistics,
    "handoff.latent_fp8": handoff.latent_fp8_handoff,
    "handoff.staged": handoff.staged_handoff,
    "handoff.no_locked_memory": handoff.no_locked_memory,
}


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.roce", description=__doc__)
    parser.add_argument("--programs", type=Path, required=True, help="Where the C++ tests are.")
    parser.add_argument("--results", type=Path, help="JUnit's XML goes here.")
    parser.add_argument("checks", nargs="*", help="Parts of names; none: every check.")
    options = parser.parse_args()
    sys.path.append(writer.DISTRIBUTION)
    runner = Runner(options.checks)
    for name, check in _CHECKS.items():
        runner.run(name, check)
    run_programs(options.programs, options.checks, runner)
    return runner.finish(options.results)


if __name__ == "__main__":
    sys.exit(main())
