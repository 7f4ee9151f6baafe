"""Settings from flags and variables."""

from __future__ import annotations

import pytest

from crossdock.rpc.serving import parse_settings
from services.router.config import RouterSettings


def parse(*flags: str) -> RouterSettings:
    return parse_settings(RouterSettings, "crossdock-router", flags)


def test_addresses_may_be_repeated_or_separated_by_commas() -> None:
    settings = parse("--model", "m", "--prefill", "a:1", "--prefill", "b:2", "--decode", "c:3, d:4")
    assert (settings.prefill, settings.decode) == (["a:1", "b:2"], ["c:3", "d:4"])
    assert parse("--model", "m", "--decode", "c:3").prefill == []


def test_variables_are_read_and_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROSSDOCK_MODEL", "from-variable")
    monkeypatch.setenv("CROSSDOCK_DECODE", "a:1,b:2")
    assert parse().decode == ["a:1", "b:2"]
    assert (parse("--decode", "c:3").decode, parse().model) == (["c:3"], "from-variable")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--model", "m"], "--decode"),
        (["--decode", "a:1"], "--model"),
        (["--model", "m", "--decode", "nowhere"], "nowhere"),
        (["--model", "m", "--decode", "a:1", "--prefill", "b:0"], "b:0"),
        (["--model", "m", "--decode", "a:1", "--port", "70000"], "--port"),
        (["--model", "m", "--decode", "a:1", "--max-requests", "0"], "--max-requests"),
        (["--model", "m", "--decode", "a:1", "--no-such-flag", "1"], "--no-such-flag"),
    ],
)
def test_bad_flags_are_named(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*flags)
    assert caught.value.code == 2
    assert named in capsys.readouterr().err
