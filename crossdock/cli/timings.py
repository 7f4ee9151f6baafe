"""Where a request's time went, as a table."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def timings_table(timings: dict[str, Any], usage: dict[str, Any]) -> Table:
    """From the router's Timings and Usage, by proto field name."""
    table = Table(title="where the time went", show_header=False, title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_column("detail", style="dim")
    for row in _rows(timings, usage):
        table.add_row(*row)
    return table


def bandwidth_gb_s(num_bytes: float, milliseconds: float) -> float:
    """Decimal gigabytes a second; 0 when nothing was timed."""
    return num_bytes / milliseconds / 1e6 if milliseconds > 0 else 0.0


def _rows(timings: dict[str, Any], usage: dict[str, Any]) -> list[tuple[str, str, str]]:
    num_prompt = usage.get("prompt_tokens", 0)
    num_cached = usage.get("cached_prompt_tokens", 0)
    num_completion = usage.get("completion_tokens", 0)
    decode_instance = timings.get("decode_instance", "")
    prefill_instance = timings.get("prefill_instance", "") or decode_instance
    computed = f"{num_prompt} tokens, {num_cached} of them cached, on {prefill_instance}"
    rows = [
        ("queue", _ms(timings, "queue_ms"), "before the first step"),
        ("prefill", _ms(timings, "prefill_ms"), computed),
        *_handoff_rows(timings, decode_instance),
        ("time to first token", _ms(timings, "ttft_ms"), "at the router"),
    ]
    generated = f"{num_completion} tokens on {decode_instance}"
    rows.append(("time per output token", _ms(timings, "tpot_ms"), generated))
    if timings.get("attempts", 1) > 1:
        rows.append(("attempts", str(timings["attempts"]), "the earlier ones were lost"))
    return rows


def _handoff_rows(timings: dict[str, Any], decode_instance: str) -> list[tuple[str, str, str]]:
    transport = timings.get("transport", "local")
    if transport == "local":
        return [("handoff", "none", f"{decode_instance} did both phases")]
    num_bytes = timings.get("handoff_bytes", 0)
    num_writes = timings.get("handoff_transfers", 0)
    transfer_ms = timings.get("handoff_transfer_ms", 0.0)
    gb_s = bandwidth_gb_s(num_bytes, transfer_ms)
    moved = f"{num_writes} writes in {transfer_ms:.2f} ms, {gb_s:.2f} GB/s"
    return [
        ("handoff", _ms(timings, "handoff_ms"), "end of compute to acknowledged commit"),
        (f"  over {transport}", f"{num_bytes / 1e6:.2f} MB", moved),
    ]


def _ms(timings: dict[str, Any], name: str) -> str:
    return f"{timings.get(name, 0.0):.2f} ms"
