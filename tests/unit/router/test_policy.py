"""Placement is a pure function of a snapshot."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from services.router.policy import (
    Candidate,
    Demand,
    FleetSnapshot,
    Placement,
    Vacancy,
    VacancyCause,
    place,
)
from services.router.worker import Role, Target

DEMAND = Demand(prompt_tokens=10, total_tokens=20)


def candidate(name: str, **changes: object) -> Candidate:
    made = Candidate(
        target=Target(name, f"{name}:1", 7),
        serves=True,
        suspect=False,
        pool_tokens=1000,
        queued_tokens=0,
        in_flight_tokens=0,
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def snapshot(prefill: list[Candidate], decode: list[Candidate]) -> FleetSnapshot:
    return FleetSnapshot(tuple(prefill), tuple(decode), has_prefill_role=True)


def placed(prefill: list[Candidate], decode: list[Candidate], rotation: int = 0) -> tuple[str, str]:
    found = place(snapshot(prefill, decode), DEMAND, rotation)
    assert isinstance(found, Placement)
    assert found.prefill is not None
    return found.prefill.instance_id, found.decode.instance_id


def test_least_tokens_in_flight_and_queued_wins() -> None:
    prefill = [candidate("p0", queued_tokens=5), candidate("p1", in_flight_tokens=4)]
    decode = [
        candidate("d0", in_flight_tokens=3, queued_tokens=3),
        candidate("d1", queued_tokens=5),
    ]
    assert placed(prefill, decode) == ("p1", "d1")


def test_ties_go_round_by_name() -> None:
    prefill, decode = [candidate("p0")], [candidate("d1"), candidate("d0"), candidate("d2")]
    order = [placed(prefill, decode, rotation)[1] for rotation in range(4)]
    assert order == ["d0", "d1", "d2", "d0"]


def test_unfit_instances_are_left_out() -> None:
    unfit = [
        candidate("a", serves=False),
        candidate("c", suspect=True),
        candidate("d", pool_tokens=10),
    ]
    assert placed([*unfit, candidate("e")], [*unfit, candidate("f")]) == ("e", "f")


def test_vacancies_say_why() -> None:
    good = [candidate("x")]
    cases = [
        ([], good, Role.PREFILL, VacancyCause.NONE_SERVES),
        (good, [candidate("d", serves=False)], Role.DECODE, VacancyCause.NONE_SERVES),
        (good, [candidate("d", suspect=True)], Role.DECODE, VacancyCause.ALL_SUSPECT),
        (good, [candidate("d", pool_tokens=19)], Role.DECODE, VacancyCause.TOO_SMALL),
        ([candidate("p", pool_tokens=10)], good, Role.PREFILL, VacancyCause.TOO_SMALL),
    ]
    for prefill, decode, role, cause in cases:
        assert place(snapshot(prefill, decode), DEMAND, 0) == Vacancy(role, cause)


def test_an_instance_that_refused_is_not_asked_again() -> None:
    demand = dataclasses.replace(DEMAND, excluded=frozenset({"d0:1"}))
    decode = [candidate("d0"), candidate("d1", in_flight_tokens=500)]
    found = place(snapshot([candidate("p0")], decode), demand, 0)
    assert isinstance(found, Placement)
    assert found.decode.instance_id == "d1"
    all_refused = place(snapshot([candidate("p0")], decode[:1]), demand, 0)
    assert all_refused == Vacancy(Role.DECODE, VacancyCause.ALL_REFUSED)


def test_instances_that_make_no_pair_are_not_put_together() -> None:
    prefill = [candidate("p0"), candidate("p1", queued_tokens=9)]
    decode = [candidate("d0"), candidate("d1", queued_tokens=9)]
    tried: set[tuple[str, str]] = set()
    order = []
    while isinstance(
        found := place(
            snapshot(prefill, decode),
            dataclasses.replace(DEMAND, mismatched=frozenset(tried)),
            0,
        ),
        Placement,
    ):
        assert found.prefill is not None
        order.append((found.prefill.instance_id, found.decode.instance_id))
        tried.add((found.prefill.address, found.decode.address))
    # Every pair once, the emptier instances first.
    assert order == [("p0", "d0"), ("p1", "d0"), ("p0", "d1"), ("p1", "d1")]
    assert found == Vacancy(Role.PREFILL, VacancyCause.ALL_REFUSED)


def test_without_a_prefill_role_decode_does_both() -> None:
    found = place(FleetSnapshot((), (candidate("d0"),), has_prefill_role=False), DEMAND, 0)
    assert found == Placement(None, Target("d0", "d0:1", 7))


CANDIDATES = st.lists(
    st.builds(
        candidate,
        st.sampled_from("abcdef"),
        serves=st.booleans(),
        suspect=st.booleans(),
        pool_tokens=st.integers(0, 40),
        queued_tokens=st.integers(0, 3),
        in_flight_tokens=st.integers(0, 3),
    ),
    max_size=6,
    unique_by=lambda made: made.target.instance_id,
)


@given(CANDIDATES, CANDIDATES, st.integers(0, 10), st.randoms())
def test_a_placement_is_fit_least_loaded_and_blind_to_order(
    prefill: list[Candidate], decode: list[Candidate], rotation: int, random: object
) -> None:
    found = place(snapshot(prefill, decode), DEMAND, rotation)
    shuffled = list(decode)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert place(snapshot(prefill, shuffled), DEMAND, rotation) == found
    fit = [made for made in decode if made.serves and not made.suspect and made.pool_tokens >= 20]
    if isinstance(found, Placement):
        [chosen] = [made for made in fit if made.target == found.decode]
        load = chosen.in_flight_tokens + chosen.queued_tokens
        assert load == min(made.in_flight_tokens + made.queued_tokens for made in fit)
    elif found.role is Role.DECODE:
        assert not fit
