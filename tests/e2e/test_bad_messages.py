"""What services may not ask of each other: every engine and the store outlive it unharmed."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from crossdock.api.v1 import decode_pb2, kv_pb2, kvstore_pb2, prefill_pb2, prefill_pb2_grpc
from crossdock.cli.fleet import Fleet
from crossdock.cli.fleet_plan import FleetOptions
from crossdock.errors import Code
from tests.conftest import StartFleet
from tests.e2e.bystander import bystander
from tests.e2e.caller import services, status_of
from tests.e2e.refusals import Refused, mismatches

# As in test_bad_input: 64 blocks of 32 tokens, fewer than the context of 4,096 tokens.
SMALL_POOL = "1MiB"
NOBODY = "127.0.0.1:1"
NAN = float("nan")
# Well-formed as far as a front can tell, and rubbish to an engine.
STRANGER = kv_pb2.EngineEndpoint(
    instance_id="stranger", epoch=7, descriptor=b"x", layout=b"x", block_stride_bytes=16_384
)
TERMS: dict[str, Any] = {"incarnation": 7, "mac_key": b"x" * 32}


@pytest.fixture(scope="module")
def fleet(tiny_model: Path, fleet_starter: StartFleet) -> Fleet:
    return fleet_starter(FleetOptions(tiny_model, kv_memory=SMALL_POOL))


def engine_requests() -> Iterator[tuple[dict[str, Any], str, str]]:
    """Fields that prefill and decode requests share."""
    yield {"request_id": ""}, "request_id", "must not be empty"
    yield {"request_id": "x" * 129}, "request_id", "129 bytes; at most 128"
    for length in (1, 15, 17):
        yield {"handoff_id": b"x" * length}, "handoff_id", "must have 16"
    yield {"attempt": 0}, "attempt", "attempts count from 1"
    yield {"token_ids": []}, "token_ids", "must not be empty"
    yield {"token_ids": [5] * 4096}, "token_ids", "at most 4095"
    yield {"token_ids": [5] * 2048}, "token_ids", "at most 2047"
    yield {"token_ids": [5, -1]}, "token_ids", "[1] is -1; ids are in [0, 511]"
    yield {"token_ids": [512]}, "token_ids", "[0] is 512"
    yield {"tenant_salt": b"x" * 65}, "tenant_salt", "65 bytes; at most 64"
    yield {"sampling": None}, "sampling.top_p", "must be in (0, 1]"


def samplings() -> Iterator[tuple[dict[str, Any], str, str]]:
    for temperature in (NAN, -1.0, 2.5):
        yield {"temperature": temperature}, "temperature", "must be in [0, 2]"
    for top_p in (NAN, 0.0, 1.5):
        yield {"top_p": top_p}, "top_p", "must be in (0, 1]"
    yield {"max_tokens": 0}, "max_tokens", "must be at least 1"
    yield {"min_tokens": 9}, "min_tokens", "at most max_tokens, 4"
    yield {"stop_token_ids": [-1]}, "stop_token_ids", "[0] is -1"
    yield {"stop_token_ids": [5] * 129}, "stop_token_ids", "129 ids; at most 128"


class Requests:
    """Good requests to a fleet, but for the fields that are given. No two have the same ids."""

    def __init__(self, fleet: Fleet) -> None:
        self._numbers = itertools.count()
        self.prefill_instance = services(fleet, "prefill")[0]
        self.prefill_epoch = status_of(self.prefill_instance).epoch
        self.decode_epoch = status_of(services(fleet, "decode")[0]).epoch

    def decode(self, **changes: Any) -> decode_pb2.DecodeRequest:
        source = {
            "source_instance_id": self.prefill_instance.instance_id,
            "source_address": self.prefill_instance.address,
            "source_epoch": self.prefill_epoch,
        }
        return decode_pb2.DecodeRequest(**{**self._common(), **source, **changes})

    def prefill(self, **changes: Any) -> prefill_pb2.PrefillRequest:
        target = {"target_instance_id": "decode-0", "target_epoch": self.decode_epoch}
        return prefill_pb2.PrefillRequest(**{**self._common(), **target, **changes})

    def sampling(self, **changes: Any) -> decode_pb2.TokenSampling:
        return decode_pb2.TokenSampling(**{"top_p": 1.0, "max_tokens": 4, **changes})

    def _common(self) -> dict[str, Any]:
        number = next(self._numbers)
        return {
            "request_id": f"bad-{number}",
            "handoff_id": number.to_bytes(16, "big"),
            "attempt": 1,
            "token_ids": [5, 6, 7],
            "sampling": self.sampling(),
        }


def grpc_cases(requests: Requests) -> Iterator[tuple[str, Refused]]:
    """(role, refusal): which service is sent what."""
    for changes, name, words in engine_requests():
        yield "decode", Refused("Decode/Generate", requests.decode(**changes), name, words)
        yield "prefill", Refused("Prefill/Prefill", requests.prefill(**changes), name, words)
    for changes, name, words in samplings():
        field = f"sampling.{name}"
        decode = requests.decode(sampling=requests.sampling(**changes))
        prefill = requests.prefill(sampling=requests.sampling(**changes))
        yield "decode", Refused("Decode/Generate", decode, field, words)
        yield "prefill", Refused("Prefill/Prefill", prefill, field, words)
    for role, method in (
        ("decode", "Decode/Generate"),
        ("prefill", "Prefill/Prefill"),
        ("prefill", "Prefill/Connect"),
        ("kvstore", "KvStore/Acquire"),
    ):
        yield role, Refused(method, b"\xff" * 12, "request", "not a valid")
    # Field 1, two bytes that are not UTF-8.
    yield "decode", Refused("Decode/Generate", b"\x0a\x02\xff\xfe", "request_id", "UTF-8")
    yield "prefill", Refused("Prefill/Prefill", b"\x0a\x02\xff\xfe", "request_id", "UTF-8")
    yield from (("prefill", refused) for refused in targets(requests))
    yield from (("decode", refused) for refused in sources(requests))
    yield from (("prefill", refused) for refused in connects("Prefill/Connect"))
    garbage, mismatch = kv_pb2.ConnectRequest(endpoint=STRANGER, **TERMS), Code.FAILED_PRECONDITION
    yield "prefill", Refused("Prefill/Connect", garbage, None, "KV layout", mismatch)


def targets(requests: Requests) -> Iterator[Refused]:
    def case(name: str | None, words: str, code: Code, **changes: Any) -> Refused:
        return Refused("Prefill/Prefill", requests.prefill(**changes), name, words, code)

    invalid, unavailable = Code.INVALID_ARGUMENT, Code.UNAVAILABLE
    yield case("handoff_id", "must have 16", invalid, handoff_id=b"")
    yield case("target_instance_id", "not be empty", invalid, target_instance_id="")
    yield case("target_instance_id", "at most 128", invalid, target_instance_id="x" * 129)
    yield case("target_epoch", "not be 0", invalid, target_epoch=0)
    yield case(None, "did not connect", unavailable, target_instance_id="decode-9")
    stale = requests.decode_epoch ^ 2
    yield case(None, "its engine has restarted", unavailable, target_epoch=stale)


def sources(requests: Requests) -> Iterator[Refused]:
    def case(name: str | None, words: str, code: Code, **changes: Any) -> Refused:
        return Refused("Decode/Generate", requests.decode(**changes), name, words, code)

    invalid, unavailable = Code.INVALID_ARGUMENT, Code.UNAVAILABLE
    yield case("handoff_id", "must be set", invalid, handoff_id=b"")
    for max_tokens in (2_046, 2**32 - 1):
        params = requests.sampling(max_tokens=max_tokens)
        yield case("sampling.max_tokens", "at most 2045", invalid, sampling=params)
    none = {"source_instance_id": "", "source_address": "", "source_epoch": 0}
    yield case("source_instance_id", "must name", invalid, **none)
    yield case("source_instance_id", "not be empty", invalid, source_instance_id="")
    yield case("source_address", "not be empty", invalid, source_address="")
    yield case("source_address", "at most 256", invalid, source_address="x" * 257)
    yield case("source_epoch", "not be 0", invalid, source_epoch=0)
    stale = requests.prefill_epoch ^ 2
    yield case(None, "epoch", unavailable, source_epoch=stale)
    another = {"source_instance_id": "prefill-9"}
    yield case(None, "prefill-9", unavailable, **another)
    yield case(None, "", unavailable, source_address=NOBODY, **another)
    yield case(None, "", unavailable, source_address="no address", **another)


def connects(method: str) -> Iterator[Refused]:
    def case(name: str, words: str, **changes: Any) -> Refused:
        request = kv_pb2.ConnectRequest(endpoint=STRANGER, **TERMS)
        for field, value in changes.items():
            setattr(request if field in TERMS else request.endpoint, field, value)
        return Refused(method, request, name, words)

    yield Refused(method, kv_pb2.ConnectRequest(**TERMS), "endpoint.instance_id", "be empty")
    yield case("endpoint.instance_id", "at most 128", instance_id="x" * 129)
    yield case("endpoint.epoch", "not be 0", epoch=0)
    yield case("endpoint.descriptor", "be empty", descriptor=b"")
    yield case("endpoint.descriptor", "at most 65536", descriptor=b"x" * 65_537)
    yield case("endpoint.layout", "be empty", layout=b"")
    yield case("endpoint.layout", "at most 4096", layout=b"x" * 4_097)
    yield case("incarnation", "not be 0", incarnation=0)
    yield case("mac_key", "31 bytes; must have 32", mac_key=b"x" * 31)


def store_cases() -> Iterator[Refused]:
    acquire, reserve = kvstore_pb2.AcquireRequest, kvstore_pb2.ReserveRequest
    many = [kv_pb2.BlockHash(low=1, high=1)] * 32_769
    one = many[:1]
    yield Refused("KvStore/Match", kvstore_pb2.MatchRequest(chain=many), "chain", "at most 32768")
    for ttl_ms in (0, 600_001, 2**32 - 1):
        yield Refused("KvStore/Acquire", acquire(chain=one, ttl_ms=ttl_ms), "ttl_ms", "600000]")
        yield Refused("KvStore/Reserve", reserve(hashes=one, ttl_ms=ttl_ms), "ttl_ms", "600000]")
    yield Refused("KvStore/Acquire", acquire(chain=many, ttl_ms=1), "chain", "at most 32768")
    yield Refused("KvStore/Reserve", reserve(hashes=many, ttl_ms=1), "hashes", "at most 32768")
    short = kvstore_pb2.StoredBlock(hash=one[0], checksum=b"x" * 15)
    commit = kvstore_pb2.CommitRequest(lease_id=1, blocks=[short])
    yield Refused("KvStore/Commit", commit, "blocks", "[0].checksum has 15 bytes; must have 16")
    for incarnation in (0, 7):
        for method, strange in (
            ("KvStore/Acquire", acquire(incarnation=incarnation, chain=one, ttl_ms=1)),
            ("KvStore/Reserve", reserve(incarnation=incarnation, hashes=one, ttl_ms=1)),
        ):
            yield Refused(method, strange, None, "call Connect first", Code.UNAVAILABLE)
    ended = kvstore_pb2.CommitRequest(lease_id=99)
    yield Refused("KvStore/Commit", ended, None, "no reservation", Code.NOT_FOUND)
    yield from connects("KvStore/Connect")
    garbage = kv_pb2.ConnectRequest(endpoint=STRANGER, **TERMS)
    yield Refused("KvStore/Connect", garbage, "endpoint.descriptor", "")
    other = kv_pb2.ConnectRequest(endpoint=STRANGER, **TERMS)
    other.endpoint.block_stride_bytes = 4_096
    mismatch = Code.FAILED_PRECONDITION
    yield Refused("KvStore/Connect", other, None, "block strides differ", mismatch)


def test_services_refuse_by_field_and_bound(fleet: Fleet) -> None:
    requests = Requests(fleet)

    async def run() -> list[str]:
        cases = [*grpc_cases(requests), *(("kvstore", refused) for refused in store_cases())]
        async with bystander(fleet):
            found = await asyncio.gather(
                *(
                    mismatches(services(fleet, role)[0].address, [c for r, c in cases if r == role])
                    for role in ("prefill", "decode", "kvstore")
                )
            )
        return list(itertools.chain(*found))

    found = asyncio.run(run())
    assert not found, "\n".join(found)


def test_a_peer_whose_bytes_are_no_text_is_refused(fleet: Fleet) -> None:
    """What the engine says of it repeats them, and reaches the caller all the same."""
    address = services(fleet, "prefill")[0].address

    async def run() -> list[str]:
        async with grpc.aio.insecure_channel(address) as channel:
            first = await anext(aiter(prefill_pb2_grpc.PrefillStub(channel).Connect(stranger())))
        ours = first.endpoint
        ours.descriptor = ours.descriptor.replace(
            struct.pack("<Q", ours.epoch), struct.pack("<Q", 7)
        )
        offers = b"shm,tcp"
        assert offers in ours.descriptor
        request = stranger()
        request.endpoint.layout = ours.layout
        request.endpoint.descriptor = ours.descriptor.replace(offers, b"no \xffext")
        refused = Refused(
            "Prefill/Connect", request, None, "no \ufffdext", Code.FAILED_PRECONDITION
        )
        return await mismatches(address, [refused])

    found = asyncio.run(run())
    assert not found, "\n".join(found)


def stranger() -> kv_pb2.ConnectRequest:
    return kv_pb2.ConnectRequest(endpoint=STRANGER, **TERMS)
