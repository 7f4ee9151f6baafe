"""The services of a scenario, and what is asked of them as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from crossdock import _native as native
from tests.sim.checkers import TenantWatch
from tests.sim.native import crossdock_sim
from tests.sim.scenario import Instance, Scenario, StoreInstance
from tests.sim.services import (
    DecodeService,
    EngineService,
    Ground,
    KvStoreService,
    PrefillService,
    RouterService,
    Service,
)


class ShortLeases:
    """A Tap on what clients ask of a kvstore: leases that end sooner than they think."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms

    def request(self, method: str, request: Any) -> None:
        if method.endswith(("/Acquire", "/Reserve")):
            request.ttl_ms = self._lease_ms

    def response(self, method: str, request: Any, response: Any) -> None: ...


class Fleet:
    """Routers, instances and the kvstore, none of them started."""

    def __init__(self, ground: Ground, scenario: Scenario) -> None:
        self._ground = ground
        self.store = _store(ground, scenario) if scenario.store is not None else None
        self.instances = [
            self._instance(instance, 9_000 + index, scenario.store)
            for index, instance in enumerate(scenario.instances)
        ]
        of_role = {
            role: [service.address for service in self.instances if service.role == role]
            for role in ("prefill", "decode")
        }
        self.watches: list[TenantWatch] = []
        self.routers: list[RouterService] = []
        for tenant in range(scenario.num_tenants):
            watch = TenantWatch(b"tenant %d" % tenant)
            router = RouterService(
                ground, f"router{tenant}", "gateway", 8_000 + tenant, renamed=False
            )
            router.connect_to(of_role["prefill"], of_role["decode"], watch)
            self.watches.append(watch)
            self.routers.append(router)
        self.services: dict[str, Service] = {
            service.name: service for group in reversed(self.groups) for service in group
        }

    @property
    def groups(self) -> tuple[Sequence[Service], ...]:
        """Callers before callees."""
        return self.routers, self.instances, [self.store] if self.store is not None else []

    def unsettled(self) -> list[str]:
        """Who does not serve, or has not found those whom it needs."""
        return [service.name for service in self.services.values() if not _is_settled(service)]

    def held(self) -> dict[str, int]:
        """What fronts and routers count that must come to nothing."""
        held: dict[str, int] = {}
        for router in self.routers:
            held[f"{router.name} live requests"] = len(router.live)
            held[f"{router.name} tokens in flight"] = router.fleet.in_flight_tokens()
        for service in self.instances:
            held[f"{service.name} live requests"] = len(service.front.live)
        return held

    def stores(self) -> Mapping[str, native.BlockStoreStatistics]:
        """Nothing of a store that no engine has connected to."""
        statistics = self.store.store.tier.statistics() if self.store is not None else None
        return {"kvstore": statistics} if statistics is not None else {}

    def _instance(
        self, instance: Instance, port: int, store: StoreInstance | None
    ) -> EngineService:
        kinds = {"prefill": PrefillService, "decode": DecodeService}
        service = kinds[instance.role](
            self._ground, instance.name, instance.host, port, renamed=instance.renamed
        )
        service.pace = instance.pace
        service.config = replace(
            service.config,
            kv_memory_bytes=instance.num_blocks * crossdock_sim.BLOCK_STRIDE_BYTES,
            **instance.config,  # type: ignore[arg-type]
        )
        if isinstance(service, PrefillService) and self.store is not None:
            service.kvstore = self.store.address
            if store is not None and store.lease_ms is not None:
                service.store_tap = ShortLeases(store.lease_ms)
        return service


def _store(ground: Ground, scenario: Scenario) -> KvStoreService:
    store = scenario.store
    assert store is not None
    service = KvStoreService(ground, store.name, store.host, 7_000, renamed=store.renamed)
    service.memory_bytes = store.num_blocks * crossdock_sim.BLOCK_STRIDE_BYTES
    service.transport = store.transport
    kv_dtype = next(i.config["kv_dtype"] for i in scenario.instances if i.role == "prefill")
    service.block_bytes = crossdock_sim.BLOCK_BYTES[str(kv_dtype)]
    return service


def _is_settled(service: Service) -> bool:
    if not service.serving:
        return False
    if isinstance(service, RouterService):
        return service.fleet.is_settled()
    if isinstance(service, PrefillService) and service.store is not None:
        return service.store.connected
    if isinstance(service, EngineService):
        return service.front.supervisor.current_or_none() is not None
    return True
