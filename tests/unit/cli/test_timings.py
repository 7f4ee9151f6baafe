from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from crossdock.cli.timings import bandwidth_gb_s, timings_table

USAGE = {"prompt_tokens": 40, "completion_tokens": 8, "cached_prompt_tokens": 32}
TIMINGS: dict[str, Any] = {
    "queue_ms": 1.5,
    "prefill_ms": 20.0,
    "handoff_ms": 3.25,
    "handoff_bytes": 4_000_000,
    "handoff_transfers": 5,
    "handoff_transfer_ms": 2.0,
    "ttft_ms": 30.0,
    "tpot_ms": 12.0,
    "transport": "shm",
    "attempts": 1,
    "prefill_instance": "prefill-0",
    "decode_instance": "decode-0",
}


def _text(timings: dict[str, Any]) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(timings_table(timings, USAGE))
    return console.export_text()


def test_bandwidth_is_decimal_gigabytes_a_second() -> None:
    assert bandwidth_gb_s(4e6, 2.0) == pytest.approx(2.0)
    assert bandwidth_gb_s(4e6, 0.0) == 0.0


def test_a_handoff_shows_bytes_writes_and_bandwidth() -> None:
    text = _text(TIMINGS)
    for part in ("over shm", "4.00 MB", "5 writes in 2.00 ms, 2.00 GB/s", "3.25 ms", "32 of them"):
        assert part in text
    assert "attempts" not in text


def test_a_local_prefill_has_no_handoff() -> None:
    text = _text({**TIMINGS, "transport": "local", "prefill_instance": ""})
    assert "decode-0 did both phases" in text
    assert "GB/s" not in text


def test_a_retried_request_says_so() -> None:
    assert "attempts" in _text({**TIMINGS, "attempts": 2})
