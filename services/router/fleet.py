"""What the router knows of the fleet: the last report of each instance, and our own load on it.

Life of an instance here: gone until its first good report, and whenever it cannot be asked; suspect
once it failed an attempt. A good report clears both: it is news from after the failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from services.router.policy import Candidate, FleetSnapshot, Placement
from services.router.validation import Limits
from services.router.worker import InstanceReport, Role, Target

# A report that is late says little on a machine whose cores are all busy; this many in a row do.
LATE_REPORTS_MAX = 3


class _Member:
    """One configured address."""

    __slots__ = ("address", "gone", "in_flight_tokens", "num_late", "report", "role", "suspect")

    def __init__(self, role: Role, address: str) -> None:
        self.role = role
        self.address = address
        self.report: InstanceReport | None = None
        self.gone = True
        self.suspect = False
        self.num_late = 0
        self.in_flight_tokens = 0

    @property
    def serves(self) -> bool:
        """Ready and taking calls, as far as reports go."""
        report = self.report
        return report is not None and report.ready and not report.draining and not self.gone


@contextmanager
def _counted(member: _Member, tokens: int) -> Iterator[None]:
    member.in_flight_tokens += tokens
    try:
        yield
    finally:
        member.in_flight_tokens -= tokens
        assert member.in_flight_tokens >= 0


class Fleet:
    """The instances of one router, fixed at start. Used on one event loop; does no IO."""

    def __init__(self, prefill: Sequence[str], decode: Sequence[str]) -> None:
        self._members = [_Member(Role.PREFILL, address) for address in dict.fromkeys(prefill)]
        self._members += [_Member(Role.DECODE, address) for address in dict.fromkeys(decode)]
        self._has_prefill_role = bool(prefill)

    def instances(self) -> list[tuple[Role, str]]:
        """The role and the address of each."""
        return [(member.role, member.address) for member in self._members]

    def record_report(self, role: Role, address: str, report: InstanceReport) -> None:
        """A good report: clears what we held against the instance."""
        member = self._member(role, address)
        member.report = report
        member.gone = member.suspect = False
        member.num_late = 0

    def record_late(self, role: Role, address: str) -> None:
        """A report did not come in time."""
        member = self._member(role, address)
        member.num_late += 1
        if member.num_late >= LATE_REPORTS_MAX:
            member.gone = True

    def record_gone(self, role: Role, address: str) -> None:
        """The instance cannot be asked."""
        self._member(role, address).gone = True

    def record_failure(self, role: Role, address: str) -> None:
        """The instance failed an attempt."""
        self._member(role, address).suspect = True

    def is_settled(self) -> bool:
        """Every instance is ready and nothing is held against it."""
        return all(member.serves and not member.suspect for member in self._members)

    def in_flight_tokens(self) -> int:
        """Our own load over all instances; 0 when nothing runs."""
        return sum(member.in_flight_tokens for member in self._members)

    def states(self) -> Mapping[tuple[Role, str], int]:
        """How many instances of a role serve, are suspect, or are away."""
        counts = {(role, state): 0 for role in Role for state in ("serving", "suspect", "away")}
        for member in self._members:
            state = "away" if not member.serves else "suspect" if member.suspect else "serving"
            counts[member.role, state] += 1
        return counts

    def snapshot(self) -> FleetSnapshot:
        """What the policy decides by."""
        return FleetSnapshot(
            prefill=self._candidates(Role.PREFILL),
            decode=self._candidates(Role.DECODE),
            has_prefill_role=self._has_prefill_role,
        )

    def limits(self) -> Limits | None:
        """The bounds of requests now. None while no instance can take one."""
        serving = [member for member in self._members if member.serves]
        if {member.role for member in serving} != {member.role for member in self._members}:
            return None
        reports = [member.report for member in serving if member.report is not None]
        pools = {
            role: [report.pool_tokens for report in reports if report.role == role] for role in Role
        }
        return Limits(
            context_tokens_max=min(report.context_tokens_max for report in reports),
            vocab_size=min(report.vocab_size for report in reports),
            decode_pool_tokens=max(pools[Role.DECODE]),
            prefill_pool_tokens=max(pools[Role.PREFILL]) if self._has_prefill_role else None,
        )

    def eos_token_ids(self) -> frozenset[int]:
        """The ids that the engines end a sequence at by themselves."""
        return frozenset(
            token_id
            for member in self._members
            if member.report is not None
            for token_id in member.report.eos_token_ids
        )

    @contextmanager
    def load(
        self, placement: Placement, prompt_tokens: int, total_tokens: int
    ) -> Iterator[Callable[[], None]]:
        """Counts an attempt's tokens on both instances while the block runs.

        Yields what takes them off the prefill instance before that: its part ends first.
        """
        with ExitStack() as decode_load, ExitStack() as prefill_load:
            decode_load.enter_context(
                _counted(self._member(Role.DECODE, placement.decode.address), total_tokens)
            )
            if placement.prefill is not None:
                prefill = self._member(Role.PREFILL, placement.prefill.address)
                prefill_load.enter_context(_counted(prefill, prompt_tokens))
            yield prefill_load.close

    def _candidates(self, role: Role) -> tuple[Candidate, ...]:
        return tuple(
            Candidate(
                target=Target(member.report.instance_id, member.address, member.report.epoch),
                serves=member.serves,
                suspect=member.suspect,
                pool_tokens=member.report.pool_tokens,
                queued_tokens=member.report.queued_tokens,
                in_flight_tokens=member.in_flight_tokens,
            )
            for member in self._members
            if member.role is role and member.report is not None
        )

    def _member(self, role: Role, address: str) -> _Member:
        for member in self._members:
            if member.role is role and member.address == address:
                return member
        raise AssertionError(f"no {role} instance at {address}")
