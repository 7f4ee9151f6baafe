"""The DRAM tier over the native index."""

from __future__ import annotations

import pytest

from crossdock.errors import Code, CrossdockError, Reason
from services.kvstore.tier import Hash, Tier

STRIDE = 4_096
EPOCH = (1 << 64) - 1
CHAIN: list[Hash] = [(1, 10), (2, 20), (3, 30)]
SUM: Hash = (7, 8)


def _tier(num_slots: int = 8) -> Tier:
    tier = Tier(num_slots * STRIDE, EPOCH)
    tier.admit(5, STRIDE, "prefill-1")
    return tier


def _publish(tier: Tier, chain: list[Hash], now_ms: int = 0) -> None:
    lease = tier.reserve(5, chain, 1_000, now_ms)
    assert tier.commit(lease.lease_id, [(hash_, SUM) for hash_ in chain]) == len(chain)


def _quarantined(tier: Tier) -> int:
    statistics = tier.statistics()
    assert statistics is not None
    return statistics.num_quarantined


def test_before_any_engine_there_is_nothing() -> None:
    tier = Tier(8 * STRIDE, EPOCH)
    assert tier.match(CHAIN) == 0
    assert tier.statistics() is None
    assert tier.expire(0) is None
    tier.release(1, [])
    with pytest.raises(CrossdockError):
        tier.commit(1, [(CHAIN[0], SUM)])


def test_blocks_are_found_once_they_are_committed() -> None:
    tier = _tier()
    lease = tier.reserve(5, CHAIN, 1_000, 0)
    assert [place.offset_bytes for place in lease.places] == [0, STRIDE, 2 * STRIDE]
    assert tier.match(CHAIN) == 0
    assert tier.commit(lease.lease_id, [(CHAIN[0], SUM), (CHAIN[1], SUM)]) == 2
    assert tier.match(CHAIN) == 2
    read = tier.acquire(5, CHAIN, 1_000, 0)
    assert [(place.hash, place.checksum) for place in read.places] == [
        (CHAIN[0], SUM),
        (CHAIN[1], SUM),
    ]


def test_a_lease_of_another_store_names_none_of_ours() -> None:
    tier, successor = _tier(), Tier(8 * STRIDE, 12_345)
    successor.admit(5, STRIDE, "prefill-1")
    old = tier.reserve(5, CHAIN, 1_000, 0)
    new = successor.reserve(5, CHAIN, 1_000, 0)
    successor.release(old.lease_id, [])
    with pytest.raises(CrossdockError):
        successor.commit(old.lease_id, [(CHAIN[0], SUM)])
    assert successor.commit(new.lease_id, [(CHAIN[0], SUM)]) == 1


def test_nothing_found_is_no_lease() -> None:
    tier = _tier()
    assert tier.acquire(5, CHAIN, 1_000, 0).lease_id == 0
    _publish(tier, CHAIN)
    assert tier.reserve(5, CHAIN, 1_000, 0).lease_id == 0


def test_the_first_engine_sets_the_stride() -> None:
    tier = _tier()
    tier.admit(6, STRIDE, "prefill-2")
    with pytest.raises(CrossdockError, match="4096 bytes, prefill-3 has blocks of 8192") as raised:
        tier.admit(7, 2 * STRIDE, "prefill-3")
    assert (raised.value.code, raised.value.reason) == (
        Code.FAILED_PRECONDITION,
        Reason.LAYOUT_MISMATCH,
    )


def test_a_block_must_fit_into_the_memory() -> None:
    with pytest.raises(CrossdockError, match="--memory"):
        Tier(STRIDE - 1, EPOCH).admit(5, STRIDE, "prefill-1")
    with pytest.raises(CrossdockError, match="does not tell"):
        Tier(STRIDE, EPOCH).admit(5, 0, "prefill-1")


def test_an_engine_that_is_not_connected_gets_no_lease() -> None:
    tier = _tier()
    for call in (tier.acquire, tier.reserve):
        with pytest.raises(CrossdockError) as raised:
            call(6, CHAIN, 1_000, 0)
        assert raised.value.reason == Reason.STALE_EPOCH


def test_an_unknown_lease_cannot_commit() -> None:
    with pytest.raises(CrossdockError) as raised:
        _tier().commit(77, [(CHAIN[0], SUM)])
    assert raised.value.code is Code.NOT_FOUND


def test_a_bad_block_is_dropped_for_good() -> None:
    tier = _tier()
    _publish(tier, CHAIN)
    read = tier.acquire(5, CHAIN, 1_000, 0)
    tier.release(read.lease_id, [CHAIN[1]])
    assert tier.match(CHAIN) == 1
    _publish(tier, CHAIN[1:2])
    assert tier.match(CHAIN) == 3


def test_a_report_that_names_other_blocks_drops_nothing() -> None:
    tier = _tier()
    _publish(tier, CHAIN)
    read = tier.acquire(5, CHAIN[:1], 1_000, 0)
    tier.release(read.lease_id, [CHAIN[1]])
    tier.release(read.lease_id, [CHAIN[0]])  # a second release of the same lease
    assert tier.match(CHAIN) == 3


def test_a_parted_engines_reservations_are_quarantined_until_proof() -> None:
    tier = _tier()
    lease = tier.reserve(5, CHAIN, 1_000, 0)
    tier.part(5)
    tier.part(5)
    assert _quarantined(tier) == 3
    with pytest.raises(CrossdockError):
        tier.acquire(5, CHAIN, 1_000, 0)
    tier.prove_silent(5)
    assert _quarantined(tier) == 0
    with pytest.raises(CrossdockError):
        tier.commit(lease.lease_id, [(CHAIN[0], SUM)])
    assert tier.match(CHAIN) == 0


def test_a_parted_engines_reads_no_longer_pin() -> None:
    tier = _tier(num_slots=4)
    _publish(tier, CHAIN)
    tier.acquire(5, CHAIN, 1_000, 0)
    tier.admit(6, STRIDE, "prefill-2")
    tier.part(5)
    others: list[Hash] = [(n, n) for n in range(50, 53)]
    assert len(tier.reserve(6, others, 1_000, 0).places) == 3


def test_an_expired_reservation_is_quarantined_until_its_writer_speaks() -> None:
    tier = _tier()
    lease = tier.reserve(5, CHAIN, 1_000, 0)
    assert tier.expire(999) == 1_000
    assert _quarantined(tier) == 0
    tier.expire(1_000)
    assert _quarantined(tier) == 3
    tier.release(lease.lease_id, [])
    assert _quarantined(tier) == 0


def test_reports_are_remembered_for_a_bounded_time() -> None:
    tier = _tier()
    _publish(tier, CHAIN)
    read = tier.acquire(5, CHAIN, 1_000, 0)
    assert tier.expire(1_500) == 2_000
    assert tier.expire(2_000) is None
    tier.release(read.lease_id, [CHAIN[0]])
    assert tier.match(CHAIN) == 3
