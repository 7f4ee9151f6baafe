"""`crossdock doctor` on two healthy devices, and on devices that something is wrong with."""

from __future__ import annotations

import json
from collections.abc import Iterator

from typer.testing import CliRunner

from crossdock.cli.main import app
from tests.roce.fabric import FIRST, SECOND, link_down, locked_memory, mtu
from tests.roce.runner import expect


def healthy() -> Iterator[str]:
    findings = _doctor()
    for side in (FIRST, SECOND):
        (found,) = (f for f in findings if f["subject"] == f"RDMA {side.port}")
        yield f"{found['subject']}: {found['fact']}"
        expect(found["state"] == "ok", f"{found}")
        gid = f"GID {side.gid_index} (RoCE v2, {side.address})"
        expect(found["fact"].endswith(gid), f"{gid} is not chosen: {found}")
    (source,) = (f for f in findings if f["subject"] == "RDMA source")
    expect(source["fact"].startswith("pyverbs"), f"verbs are not asked: {source}")
    (memory,) = (f for f in findings if f["subject"] == "locked memory")
    expect(memory["state"] == "ok", f"{memory}")


def wrong_index() -> Iterator[str]:
    arguments = ("--rdma-device", SECOND.port, "--gid-index", "0")
    yield from _names(f"RDMA {SECOND.port}", "link-local", "--gid-index 1", *arguments)
    arguments = ("--rdma-device", FIRST.port, "--gid-index", "9")
    yield from _names(f"RDMA {FIRST.port}", "GID index 9 is empty", "--gid-index 1", *arguments)


def mtu_mismatch() -> Iterator[str]:
    with mtu(SECOND, 1500):
        yield from _names(
            f"RDMA {SECOND.port}", "MTU mismatch: it takes 1024 bytes", "dev veth1 mtu 4200"
        )


def down() -> Iterator[str]:
    with link_down():
        for side in (FIRST, SECOND):
            remedy = f"ip link set dev {side.interface} up"
            yield from _names(f"RDMA {side.port}", "the link is DOWN", remedy, alone=False)


def little_locked_memory() -> Iterator[str]:
    with locked_memory(64 << 10):
        yield from _names("locked memory", "64 KiB; RDMA must lock", "ulimit -l unlimited")


def _doctor(*arguments: str) -> list[dict[str, str]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    findings: list[dict[str, str]] = json.loads(result.stdout)
    bad = any(finding["state"] == "missing" for finding in findings)
    expect(result.exit_code == int(bad), f"exit code {result.exit_code} of {findings}")
    return findings


def _names(
    subject: str, fact: str, remedy: str, *arguments: str, alone: bool = True
) -> Iterator[str]:
    """The doctor finds this in the way, says how to mend it, and blames nothing else of RDMA."""
    findings = _doctor(*arguments)
    about = [f for f in findings if f["subject"].startswith(("RDMA", "locked memory"))]
    bad = [finding for finding in about if finding["state"] == "missing"]
    matching = [f for f in bad if f["subject"] == subject and fact in f["fact"]]
    expect(matching, f"expected {subject}: {fact!r} among {about}")
    expect(remedy in matching[0]["remedy"], f"expected {remedy!r} in {matching[0]}")
    expect(not alone or len(bad) == 1, f"something else is blamed, too: {bad}")
    yield f"{subject}: {matching[0]['fact']} -> {matching[0]['remedy']}"
