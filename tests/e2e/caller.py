"""A caller of a fleet, and a look into its instances: what the end-to-end tests stand on."""

from __future__ import annotations

import asyncio
import time
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import grpc
from prometheus_client.parser import text_string_to_metric_families

from crossdock.api.v1 import (
    decode_pb2,
    decode_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    kv_pb2,
    kvstore_pb2_grpc,
    prefill_pb2_grpc,
)
from crossdock.cli.fleet import Fleet
from crossdock.cli.fleet_record import ServiceRecord

# Longer than any request of these tests takes on a loaded machine of two cores.
REQUEST_TIMEOUT_S = 240.0


@dataclass
class Answer:
    """What one request brought."""

    ids: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    text: str = ""
    finish: inference_pb2.Finish | None = None

    @property
    def same(self) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        """What must be equal wherever it was computed: ids, and the bits of every logit."""
        return tuple(self.ids), tuple(self.digests)


def sampling(max_tokens: int, **changes: object) -> inference_pb2.SamplingParams:
    """Greedy, over a fixed number of tokens, unless changed."""
    values: dict[str, object] = {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True}
    values.update(changes)
    return inference_pb2.SamplingParams(**values)  # type: ignore[arg-type]


class Caller:
    """Talks to a router. Use it within one event loop."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(
            address, options=[("grpc.max_send_message_length", 16 << 20)]
        )
        self.stub = inference_pb2_grpc.InferenceStub(self.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close(None)

    async def generate(
        self,
        prompt: Sequence[int],
        params: inference_pb2.SamplingParams,
        *,
        request_id: str = "",
        timeout_s: float = REQUEST_TIMEOUT_S,
        on_message: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """Runs one request to its end; raises grpc.aio.AioRpcError as it comes."""
        request = inference_pb2.GenerateRequest(
            request_id=request_id,
            token_ids=inference_pb2.TokenIds(ids=prompt),
            sampling=params,
            return_logit_digests=True,
        )
        answer = Answer()
        async for message in self.stub.Generate(request, timeout=timeout_s):
            answer.ids.extend(message.token_ids)
            answer.digests.extend(message.logit_digests)
            answer.text += message.text
            if message.HasField("finish"):
                assert answer.finish is None, "a second terminal message"
                answer.finish = message.finish
            if on_message is not None:
                on_message(answer)
        assert answer.finish is not None, "the stream ended without a terminal message"
        assert len(answer.ids) == len(answer.digests)
        return answer

    async def generate_all(
        self, prompts: Sequence[Sequence[int]], params: Sequence[inference_pb2.SamplingParams]
    ) -> list[Answer]:
        """All at once."""
        calls = (self.generate(p, s) for p, s in zip(prompts, params, strict=True))
        return list(await asyncio.gather(*calls))


def services(fleet: Fleet, role: str) -> list[ServiceRecord]:
    """The fleet's processes of one role."""
    assert fleet.record is not None
    return [service for service in fleet.record.services if service.role == role]


def router_address(fleet: Fleet) -> str:
    """Where the router serves gRPC."""
    return services(fleet, "router")[0].address


def one_engine(
    fleet: Fleet, prompt: Sequence[int], num_generated: int, **changes: object
) -> Answer:
    """The decode instance's engine does both phases: no handoff is named."""
    params = sampling(num_generated, **changes)
    request = decode_pb2.DecodeRequest(
        request_id=uuid.uuid4().hex,
        attempt=1,
        token_ids=prompt,
        sampling=decode_pb2.TokenSampling(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p if params.HasField("top_p") else 1.0,
            seed=params.seed,
            max_tokens=params.max_tokens,
            ignore_eos=True,
        ),
        # Of another tenant than the fleet's callers: nothing of theirs is found in its cache.
        tenant_salt=b"one engine",
        return_logit_digests=True,
    )
    answer = Answer()
    with grpc.insecure_channel(services(fleet, "decode")[0].address) as channel:
        for message in decode_pb2_grpc.DecodeStub(channel).Generate(
            request, timeout=REQUEST_TIMEOUT_S
        ):
            answer.ids.extend(token.token_id for token in message.tokens)
            answer.digests.extend(token.logit_digest for token in message.tokens)
    return answer


_STUBS = {
    "prefill": prefill_pb2_grpc.PrefillStub,
    "decode": decode_pb2_grpc.DecodeStub,
    "kvstore": kvstore_pb2_grpc.KvStoreStub,
}


def status_of(service: ServiceRecord, timeout_s: float = 30.0) -> kv_pb2.InstanceStatus:
    """What one instance says of itself."""
    with grpc.insecure_channel(service.address) as channel:
        stub = _STUBS[service.role](channel)
        status: kv_pb2.InstanceStatus = stub.GetStatus(kv_pb2.InstanceRequest(), timeout=timeout_s)
        return status


def retries(router: ServiceRecord) -> float:
    """Attempts that the router started after a loss."""
    with urllib.request.urlopen(f"http://{router.metrics_address}/metrics", timeout=30) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == "crossdock_router_retries_total" and sample.labels["cause"] == "lost"
        )


def engines(fleet: Fleet) -> list[ServiceRecord]:
    """The instances that have an engine."""
    return [*services(fleet, "prefill"), *services(fleet, "decode")]


def leftovers(fleet: Fleet) -> list[str]:
    """Whatever an idle fleet must not hold; empty when it is clean."""
    found = []
    for service in engines(fleet):
        status = status_of(service)
        accounts = {
            "owned blocks": status.num_owned_blocks,
            "quarantined blocks": status.num_quarantined_blocks,
            "running": status.num_running,
            "waiting": status.num_waiting,
            "sequences of the front": status.num_reserved_sequences,
            "handoffs": status.num_handoffs,
            "not ready": not status.ready,
        }
        found += [f"{service.instance_id}: {what} {n}" for what, n in accounts.items() if n]
        parts = status.num_free_blocks + status.num_cached_blocks
        if parts != status.num_blocks:
            found.append(f"{service.instance_id}: {parts} blocks of {status.num_blocks} are left")
    return found


def wait_until_clean(fleet: Fleet, timeout_s: float = 60.0) -> None:
    """Returns once nothing is held; fails with what is, after the timeout."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            found = leftovers(fleet)
        except grpc.RpcError as error:
            found = [str(error)]
        if not found:
            return
        assert time.monotonic() < deadline_s, f"still held: {found}"
        time.sleep(0.1)


def wait_until_connected(fleet: Fleet, timeout_s: float = 60.0) -> None:
    """Returns once every prefill engine has a pair with the store, which is made in the background;
    until then nothing is kept, and nothing found.
    """
    (store,) = services(fleet, "kvstore")
    deadline_s = time.monotonic() + timeout_s
    for prefill in services(fleet, "prefill"):
        while (store.instance_id, "ready") not in {
            (peer.instance_id, peer.state) for peer in status_of(prefill).peers
        }:
            assert time.monotonic() < deadline_s, f"{prefill.instance_id} has no store"
            time.sleep(0.1)
