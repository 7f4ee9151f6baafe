"""Which instances a request goes to: Filter -> Scorer -> Picker over a snapshot.

Pure: the same snapshot, demand and rotation give the same placement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from services.router.worker import Role, Target


@dataclass(frozen=True, slots=True)
class Candidate:
    """One instance as the policy sees it.

    `serves`: it is reached, ready and not draining. `suspect`: it failed us since it said so.
    """

    target: Target
    serves: bool
    suspect: bool
    pool_tokens: int
    queued_tokens: int
    in_flight_tokens: int


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """Every configured instance. Without prefill instances, decode instances do both phases."""

    prefill: tuple[Candidate, ...]
    decode: tuple[Candidate, ...]
    has_prefill_role: bool


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request needs. `excluded` are addresses that refused it already, `mismatched` those of
    (prefill, decode) that cannot make a pair."""

    prompt_tokens: int
    total_tokens: int
    excluded: frozenset[str] = frozenset()
    mismatched: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an attempt goes."""

    prefill: Target | None
    decode: Target


class VacancyCause(Enum):
    """Why no instance of a role can take the request."""

    NONE_SERVES = "none is ready"
    ALL_SUSPECT = "every ready one just failed"
    ALL_REFUSED = "every ready one refused"
    TOO_SMALL = "it fits none of the ready ones"


@dataclass(frozen=True, slots=True)
class Vacancy:
    """No placement: the role that has nobody, and why."""

    role: Role
    cause: VacancyCause


Filter = Callable[[Candidate, Demand], bool]
Scorer = Callable[[Candidate], int]


def is_serving(candidate: Candidate, _demand: Demand) -> bool:
    """Ready, and taking calls."""
    return candidate.serves


def is_trusted(candidate: Candidate, _demand: Demand) -> bool:
    """Not failing since its last good report."""
    return not candidate.suspect


def has_not_refused(candidate: Candidate, demand: Demand) -> bool:
    """It did not refuse this request before."""
    return candidate.target.address not in demand.excluded


def holds_prompt(candidate: Candidate, demand: Demand) -> bool:
    """Its whole pool could hold the prompt and the first token."""
    return demand.prompt_tokens < candidate.pool_tokens


def holds_sequence(candidate: Candidate, demand: Demand) -> bool:
    """Its whole pool could hold prompt and output."""
    return demand.total_tokens <= candidate.pool_tokens


def token_load(candidate: Candidate) -> int:
    """Tokens that we sent and that did not end, and those waiting there from anyone."""
    return candidate.in_flight_tokens + candidate.queued_tokens


_FITS: dict[Role, Filter] = {Role.PREFILL: holds_prompt, Role.DECODE: holds_sequence}


def pick(candidates: Sequence[Candidate], scorer: Scorer, rotation: int) -> Candidate:
    """The lowest score; ties by name, starting `rotation` names further."""
    lowest = min(scorer(candidate) for candidate in candidates)
    tied = sorted(
        (candidate for candidate in candidates if scorer(candidate) == lowest),
        key=lambda candidate: (candidate.target.instance_id, candidate.target.address),
    )
    return tied[rotation % len(tied)]


def choose(
    role: Role, candidates: Sequence[Candidate], demand: Demand, rotation: int
) -> Target | Vacancy:
    """One instance of a role, or why there is none."""
    left = list(candidates)
    # In order of the cause that is told when a filter leaves nobody.
    for keep, cause in (
        (is_serving, VacancyCause.NONE_SERVES),
        (_FITS[role], VacancyCause.TOO_SMALL),
        (is_trusted, VacancyCause.ALL_SUSPECT),
        (has_not_refused, VacancyCause.ALL_REFUSED),
    ):
        left = [candidate for candidate in left if keep(candidate, demand)]
        if not left:
            return Vacancy(role, cause)
    return pick(left, token_load, rotation).target


def place(snapshot: FleetSnapshot, demand: Demand, rotation: int) -> Placement | Vacancy:
    """A pair for one attempt, or the first role that has nobody."""
    decode = choose(Role.DECODE, snapshot.decode, demand, rotation)
    if isinstance(decode, Vacancy):
        return decode
    if not snapshot.has_prefill_role:
        return Placement(None, decode)
    strangers = {prefill for prefill, other in demand.mismatched if other == decode.address}
    partners = replace(demand, excluded=demand.excluded | strangers)
    prefill = choose(Role.PREFILL, snapshot.prefill, partners, rotation)
    if not isinstance(prefill, Vacancy):
        return Placement(prefill, decode)
    if not strangers:
        return prefill
    others = place(snapshot, replace(demand, excluded=demand.excluded | {decode.address}), rotation)
    return others if isinstance(others, Placement) else prefill
