"""Makes the faults of a scenario happen, and undoes what lasts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, cast

from tests.sim.callers import Caller
from tests.sim.engines import Member, Path
from tests.sim.scenario import Fault
from tests.sim.services import EngineService, Ground, Service
from tests.sim.virtual_loop import Process

_RESTART_MAX_S = 3.0
# What is written here is under way for so long that its sender may die meanwhile.
_SLOW_PATH = Path(delay_min_ns=20_000_000, delay_max_ns=400_000_000, bytes_per_s=500_000)
# An open, some writes.
_OPERATIONS_BEFORE = 2


class Faults:
    """Runs outside of every process. What it undoes at a fault's end, `undo_all` undoes early."""

    def __init__(
        self,
        ground: Ground,
        random: Random,
        services: dict[str, Service],
        callers: list[Caller],
        note: Callable[[str], None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._ground = ground
        self._random = random
        self._services = services
        self._callers = callers
        self._note = note
        self._undoing: list[Callable[[], None]] = []
        self._over = False

    def schedule(self, faults: tuple[Fault, ...], start_s: float) -> None:
        for fault in faults:
            self._ground.loop.call_at(start_s + fault.at_s, self._happen, fault)

    def undo_all(self) -> None:
        """From here on the fleet is left alone, and what is dead is started again."""
        self._over = True
        self._ground.engines.world.disarm()
        undoing, self._undoing = self._undoing, []
        for undo in undoing:
            undo()
        for service in self._services.values():
            self._restart(service)

    def _happen(self, fault: Fault) -> None:
        if self._over:
            return
        act: Callable[[Fault, Service], bool] = getattr(self, f"_{fault.kind.replace('-', '_')}")
        if act(fault, self._services[fault.target]):
            self.counts[fault.kind] += 1
            self._note(f"fault {fault.kind} {fault.target} {fault.other} for {fault.lasts_s} s")

    def _lasting(self, fault: Fault, undo: Callable[[], None]) -> bool:
        def finish() -> None:
            if undo in self._undoing:
                self._undoing.remove(undo)
                self._note(f"end of {fault.kind} {fault.target} {fault.other}")
                undo()

        self._undoing.append(undo)
        self._ground.loop.call_later(fault.lasts_s, finish)
        return True

    def _restart_later(self, service: Service) -> None:
        delay_s = self._random.uniform(0.0, _RESTART_MAX_S)
        self._ground.loop.outside(delay_s, self._restart_after, service, service.process)

    def _restart_after(self, service: Service, process: Process | None) -> None:
        # It may have been started again already, and have ended again for good.
        if service.process is process:
            self._restart(service)

    def _restart(self, service: Service) -> None:
        if not service.alive:
            self._note(f"start {service.name}")
            service.start()

    def _engine(self, service: Service) -> Member | None:
        """The engine that runs now; of a kvstore its segment."""
        return self._ground.engines.of(service.process) if service.process is not None else None

    # ---- processes -----------------------------------------------------------------------------

    def _kill_front(self, fault: Fault, service: Service) -> bool:
        del fault
        if service.process is None or not service.alive:
            return False
        service.process.kill()
        self._restart_later(service)
        return True

    _kill_router = _kill_front

    def _kill_engine(self, fault: Fault, service: Service) -> bool:
        del fault
        engine = self._engine(service)
        if engine is None:
            return False
        engine.kill()
        return True

    def _kill_engine_in_operation(self, fault: Fault, service: Service) -> bool:
        engine = self._engine(service)
        if engine is None:
            return False
        self._ground.engines.world.kill_at_operation(engine.engine_id, fault.count)
        return True

    def _kill_caller(self, fault: Fault, service: Service) -> bool:
        del fault, service
        left = [caller for caller in self._callers if not caller.outcome.over]
        if not left:
            return False
        self._random.choice(left).kill()
        return True

    def _stop_front(self, fault: Fault, service: Service) -> bool:
        if not service.alive:
            return False
        return self._lasting(fault, service.stop())

    _stop_router = _stop_front

    def _stop_engine(self, fault: Fault, service: Service) -> bool:
        engine = self._engine(service)
        if engine is None:
            return False
        engine.stop()
        return self._lasting(fault, engine.resume)

    def _orphan_stopped(self, fault: Fault, service: Service) -> bool:
        """A stopped engine outlives its front, and goes on in the middle of what it did."""
        return self._stop_engine(fault, service) and self._kill_front(fault, service)

    def _stop_both(self, fault: Fault, service: Service) -> bool:
        return self._stop_engine(fault, service) and self._stop_front(fault, service)

    def _terminate(self, fault: Fault, service: Service) -> bool:
        del fault
        process = service.process
        if process is None or not service.alive or not service.serving:
            return False
        service.terminate()
        process.on_death.append(lambda: self._restart_later(service))
        return True

    _terminate_router = _terminate

    def _slow_engine(self, fault: Fault, service: Service) -> bool:
        engine = self._engine(service)
        if engine is None:
            return False
        world, pace = self._ground.engines.world, cast(EngineService, service).pace
        factor = 50
        world.set_pace(
            engine.engine_id, token_ns=pace.token_ns * factor, step_ns=pace.step_ns * factor
        )

        def undo() -> None:
            world.set_pace(engine.engine_id, token_ns=pace.token_ns, step_ns=pace.step_ns)

        return self._lasting(fault, undo)

    # ---- networks ------------------------------------------------------------------------------

    def _partition(self, fault: Fault, service: Service) -> bool:
        a, b = service.host, self._services[fault.other].host
        if a == b:
            return False
        self._ground.network.partition(a, b)
        self._ground.engines.partition(a, b)

        def heal() -> None:
            self._ground.network.heal(a, b)
            self._ground.engines.heal(a, b)

        return self._lasting(fault, heal)

    def _reset(self, fault: Fault, service: Service) -> bool:
        del fault
        process = service.process
        return process is not None and self._ground.network.reset_one(process)

    def _slow_network(self, fault: Fault, service: Service) -> bool:
        del service
        conditions = self._ground.network.conditions
        before = conditions.delay_max_s
        conditions.delay_max_s = 0.3

        def undo() -> None:
            conditions.delay_max_s = min(before, conditions.delay_max_s)

        return self._lasting(fault, undo)

    def _slow_path(self, fault: Fault, service: Service) -> bool:
        a, b = self._engine(service), self._engine(self._services[fault.other])
        if a is None or b is None or a is b:
            return False
        engines = self._ground.engines
        engines.set_path(a, b, _SLOW_PATH)
        return self._lasting(fault, lambda: engines.set_path(a, b, None))

    def _kill_on_slow_paths(self, fault: Fault, service: Service) -> bool:
        """An engine dies as it posts: what it posted before lands when it is dead."""
        engine = self._engine(service)
        if engine is None:
            return False
        engines = self._ground.engines
        others = [other for other in engines.members() if other is not engine]
        for other in others:
            engines.set_path(engine, other, _SLOW_PATH)
        engines.world.kill_at_operation(engine.engine_id, _OPERATIONS_BEFORE + fault.count)

        def undo() -> None:
            for other in others:
                engines.set_path(engine, other, None)

        return self._lasting(fault, undo)

    def _corrupt_store(self, fault: Fault, service: Service) -> bool:
        memory = self._engine(service)
        if memory is None:
            return False
        world = self._ground.engines.world
        return sum(world.corrupt(memory.engine_id) for _ in range(fault.count)) > 0

    # ---- what engines send each other ------------------------------------------------------------

    def _break_pair(self, fault: Fault, service: Service) -> bool:
        a, b = self._engine(service), self._engine(self._services[fault.other])
        if a is None or b is None or a is b:
            return False
        self._ground.engines.world.break_pair(a.engine_id, b.engine_id)
        return True

    def _on_engine(self, service: Service, act: Callable[[Any, int], None]) -> bool:
        engine = self._engine(service)
        if engine is None:
            return False
        act(self._ground.engines.world, engine.engine_id)
        return True

    def _fail_posts(self, fault: Fault, service: Service) -> bool:
        return self._on_engine(service, lambda world, id_: world.fail_posts(id_, fault.count))

    def _lose_completions(self, fault: Fault, service: Service) -> bool:
        return self._on_engine(service, lambda world, id_: world.lose_completion(id_, fault.count))

    def _tamper(self, fault: Fault, service: Service) -> bool:
        return self._on_engine(
            service,
            lambda world, id_: world.tamper(
                id_, fault.how, message=fault.message, count=fault.count
            ),
        )
