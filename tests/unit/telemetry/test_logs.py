"""What services log, and that a log which cannot be written harms nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import logging, structlog
from crossdock.telemetry.logs import configure_logging
configure_logging("info", role="decode")
structlog.get_logger().debug("too much")
structlog.get_logger().info("loaded", layers=2)
logging.getLogger("library").warning("a %s", "word")
logging.getLogger("library").info("too much")
try:
    raise ValueError("two\\nlines")
except ValueError:
    logging.getLogger("library").exception("failed")
print("alive")
"""


def _run(stderr: Path) -> subprocess.CompletedProcess[str]:
    with stderr.open("w") as file:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            timeout=60,
            check=False,
        )


def test_a_line_is_one_json_object(tmp_path: Path) -> None:
    assert _run(tmp_path / "log").returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    for line in lines:
        assert line.pop("time").endswith("Z")
        assert line.pop("role") == "decode"
    own, library, failed = lines
    assert own == {"event": "loaded", "level": "info", "layers": 2}
    assert library == {"event": "a word", "level": "warning", "logger": "library"}
    assert "ValueError: two\nlines" in failed["exception"]


def test_a_full_disk_loses_lines_and_ends_nothing() -> None:
    ended = _run(Path("/dev/full"))
    assert ended.stdout == "alive\n"
    assert ended.returncode == 0
