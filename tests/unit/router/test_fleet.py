"""What the router remembers of its instances."""

from __future__ import annotations

import dataclasses

import pytest

from services.router.fleet import LATE_REPORTS_MAX, Fleet
from services.router.policy import Placement
from services.router.worker import InstanceReport, Role, Target

REPORT = InstanceReport(
    instance_id="p0",
    role="prefill",
    epoch=1,
    model="m",
    ready=True,
    draining=False,
    pool_tokens=320,
    queued_tokens=0,
    context_tokens_max=512,
    vocab_size=100,
    eos_token_ids=(2,),
)
DECODE = dataclasses.replace(REPORT, instance_id="d0", role="decode", pool_tokens=640)
PLACEMENT = Placement(Target("p0", "p:1", 1), Target("d0", "d:1", 1))


def make_fleet() -> Fleet:
    fleet = Fleet(["p:1"], ["d:1"])
    fleet.record_report(Role.PREFILL, "p:1", REPORT)
    fleet.record_report(Role.DECODE, "d:1", DECODE)
    return fleet


def test_limits_come_from_the_reports() -> None:
    limits = make_fleet().limits()
    assert limits is not None
    assert (limits.prefill_pool_tokens, limits.decode_pool_tokens) == (320, 640)
    assert (limits.context_tokens_max, limits.vocab_size) == (512, 100)


def test_no_limits_until_each_role_reported() -> None:
    fleet = Fleet(["p:1"], ["d:1"])
    assert fleet.limits() is None
    fleet.record_report(Role.DECODE, "d:1", DECODE)
    assert fleet.limits() is None
    assert not fleet.is_settled()
    fleet.record_report(Role.PREFILL, "p:1", REPORT)
    assert fleet.limits() is not None
    assert fleet.is_settled()


@pytest.mark.parametrize(
    "report",
    [dataclasses.replace(DECODE, ready=False), dataclasses.replace(DECODE, draining=True)],
)
def test_a_report_may_take_an_instance_away(report: InstanceReport) -> None:
    fleet = make_fleet()
    fleet.record_report(Role.DECODE, "d:1", report)
    assert fleet.limits() is None


def test_a_failure_holds_until_the_next_good_report() -> None:
    fleet = make_fleet()
    fleet.record_failure(Role.DECODE, "d:1")
    assert fleet.snapshot().decode[0].suspect
    fleet.record_report(Role.DECODE, "d:1", DECODE)
    assert not fleet.snapshot().decode[0].suspect


def test_a_suspect_still_counts_for_the_limits() -> None:
    fleet = make_fleet()
    fleet.record_failure(Role.DECODE, "d:1")
    assert fleet.limits() is not None
    assert not fleet.is_settled()


def test_an_instance_that_cannot_be_asked_is_gone_until_it_reports() -> None:
    fleet = make_fleet()
    fleet.record_gone(Role.DECODE, "d:1")
    assert not fleet.snapshot().decode[0].serves
    assert fleet.limits() is None
    fleet.record_report(Role.DECODE, "d:1", DECODE)
    assert fleet.snapshot().decode[0].serves


def test_one_late_report_is_forgiven_many_are_not() -> None:
    fleet = make_fleet()
    for _ in range(LATE_REPORTS_MAX - 1):
        fleet.record_late(Role.DECODE, "d:1")
    assert fleet.snapshot().decode[0].serves
    fleet.record_late(Role.DECODE, "d:1")
    assert not fleet.snapshot().decode[0].serves


def test_load_is_counted_while_the_attempt_runs_and_released_on_every_way_out() -> None:
    fleet = make_fleet()
    with fleet.load(PLACEMENT, 10, 30) as release_prefill:
        snapshot = fleet.snapshot()
        assert snapshot.prefill[0].in_flight_tokens == 10
        assert snapshot.decode[0].in_flight_tokens == 30
        release_prefill()
        release_prefill()
        assert fleet.in_flight_tokens() == 30
    assert fleet.in_flight_tokens() == 0
    with pytest.raises(RuntimeError), fleet.load(PLACEMENT, 10, 30):
        raise RuntimeError
    assert fleet.in_flight_tokens() == 0


def test_end_of_sequence_ids_of_all_instances() -> None:
    assert make_fleet().eos_token_ids() == {2}
