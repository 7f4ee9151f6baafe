"""`python -m tools.roce`: boots a guest with two Soft-RoCE devices and runs the suite in it.

Exits with the suite's status. Where the guest cannot be started that is a failure under CI, and
elsewhere a reason and success.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from tools.roce import guest
from tools.roce.image import CannotBootError, prepare

_ROOT = Path(__file__).resolve().parent.parent.parent
# The suite took 500 s where eight other processes wanted the two cores.
_SUITE_S = 900.0


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.roce", description=__doc__)
    parser.add_argument("--programs", type=Path, default=_ROOT / "build/python/native")
    parser.add_argument("--bound-s", type=float, default=_SUITE_S, help="For the whole suite.")
    parser.add_argument("--shell", help="Run this in the guest instead of the suite.")
    parser.add_argument("checks", nargs="*", help="Parts of names; none: every check.")
    options = parser.parse_args()
    # Whoever ends this process ends the guest, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    work = _ROOT / "build/roce"
    command = [sys.executable, "-m", "tests.roce", "--programs", str(options.programs.resolve())]
    command += ["--results", "/mnt/roce/results.xml", *options.checks]
    if options.shell is not None:
        command = ["bash", "-c", options.shell]
    try:
        image = prepare(_cache(), Path(__file__).with_name("init"))
        return guest.run(image, command, work, _ROOT, options.bound_s)
    except CannotBootError as error:
        if os.environ.get("CI"):
            print(f"roce-test: {error}", file=sys.stderr)
            return 1
        print(f"roce-test: skipped: {error}")
        return 0


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "crossdock" / "roce"


if __name__ == "__main__":
    sys.exit(main())
