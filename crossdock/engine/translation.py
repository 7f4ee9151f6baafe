"""Between the messages of the services and the values of this package."""

from __future__ import annotations

import os
from pathlib import Path

from crossdock import _native as native
from crossdock.api.v1 import decode_pb2, kv_pb2, prefill_pb2
from crossdock.engine import limits
from crossdock.engine.client import Engine
from crossdock.engine.front import Front
from crossdock.engine.peers import MAC_KEY_BYTES, Pair, PairTerms, Remote
from crossdock.engine.validation import Request, check_text
from crossdock.errors import CrossdockError, invalid_argument


def sampling_of(message: decode_pb2.TokenSampling) -> native.Sampling:
    """Unchecked: validation.py names what is out of bounds."""
    return native.Sampling(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        seed=message.seed,
        choice=message.choice,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        ignore_eos=message.ignore_eos,
        stop_token_ids=list(message.stop_token_ids),
    )


def request_of(message: decode_pb2.DecodeRequest | prefill_pb2.PrefillRequest) -> Request:
    """The part that requests to prefill and to decode share, unchecked."""
    return Request(
        request_id=message.request_id,
        handoff_id=message.handoff_id,
        attempt=message.attempt,
        token_ids=list(message.token_ids),
        num_generated_tokens=message.num_generated_tokens,
        sampling=sampling_of(message.sampling),
        tenant_salt=message.tenant_salt,
        wants_digests=message.return_logit_digests,
    )


def token_message(event: native.SequenceToken, *, wants_digests: bool) -> decode_pb2.GeneratedToken:
    message = decode_pb2.GeneratedToken(token_id=event.token, position=event.position)
    if wants_digests:
        message.logit_digest = digest_bytes(event.digest_low, event.digest_high)
    return message


def digest_bytes(low: int, high: int) -> bytes:
    """A 128-bit digest as 16 bytes, the low half first, each half little-endian."""
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def digest_words(digest: bytes) -> tuple[int, int]:
    """The halves of `digest_bytes`; of a digest of another length, those of as much as there is."""
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")


def endpoint_of(engine: Engine, instance_id: str) -> kv_pb2.EngineEndpoint:
    """Our engine, as its peers see it."""
    ready = engine.ready
    return kv_pb2.EngineEndpoint(
        instance_id=instance_id,
        epoch=ready.epoch,
        descriptor=ready.descriptor,
        layout=ready.layout,
        layout_text=ready.layout_text,
        block_stride_bytes=ready.block_stride_bytes,
    )


def remote_of(endpoint: kv_pb2.EngineEndpoint) -> Remote:
    """A peer's engine, checked as far as a front can."""
    check_text("endpoint.instance_id", endpoint.instance_id, limits.INSTANCE_ID_BYTES_MAX)
    if endpoint.epoch == 0:
        raise invalid_argument("endpoint.epoch", "must not be 0")
    _check_bytes("endpoint.descriptor", endpoint.descriptor, limits.DESCRIPTOR_BYTES_MAX)
    _check_bytes("endpoint.layout", endpoint.layout, limits.LAYOUT_BYTES_MAX)
    return Remote(
        instance_id=endpoint.instance_id,
        epoch=endpoint.epoch,
        descriptor=endpoint.descriptor,
        layout=endpoint.layout,
        layout_text=endpoint.layout_text,
        block_stride_bytes=endpoint.block_stride_bytes,
    )


def terms_of(request: kv_pb2.ConnectRequest) -> PairTerms:
    """What a caller proposes for a pair, checked."""
    if request.incarnation == 0:
        raise invalid_argument("incarnation", "must not be 0")
    if len(request.mac_key) != MAC_KEY_BYTES:
        raise invalid_argument(
            "mac_key", f"has {len(request.mac_key)} bytes; must have {MAC_KEY_BYTES}"
        )
    return PairTerms(incarnation=request.incarnation, mac_key=request.mac_key)


def _check_bytes(field: str, value: bytes, bytes_max: int) -> None:
    if not value:
        raise invalid_argument(field, "must not be empty")
    if len(value) > bytes_max:
        raise invalid_argument(field, f"has {len(value)} bytes; at most {bytes_max}")


async def status_of(front: Front) -> kv_pb2.InstanceStatus:
    """The instance as it is now. While its engine is away, what the front knows alone; while it
    is inside a long step, its last report.
    """
    config, supervisor = front.config, front.supervisor
    message = kv_pb2.InstanceStatus(
        instance_id=front.instance_id,
        role=front.role,
        model=Path(config.model_directory).name,
        model_directory=config.model_directory,
        kv_dtype=config.kv_dtype,
        draining=front.server.gate.draining,
        front_pid=os.getpid(),
        num_engine_restarts=supervisor.num_restarts,
    )
    engine = supervisor.current_or_none()
    if engine is None:
        return message
    ready = engine.ready
    message.ready = not message.draining
    message.epoch = ready.epoch
    message.numerics_id = ready.numerics_id
    message.num_blocks = ready.num_blocks
    message.context_tokens_max = ready.context_tokens_max
    message.vocab_size = ready.vocab_size
    message.eos_token_ids.extend(ready.eos_token_ids)
    message.engine_pid = engine.pid
    message.num_reserved_sequences = engine.num_sequences
    pairs = {pair.peer_id: peer_status(pair) for pair in engine.peers}
    try:
        report: native.StatusReport | None = await engine.status(limits.STATUS_MAX_S)
    except CrossdockError:  # inside a long step, or just ended
        report = engine.last_report
        message.ready = message.ready and not engine.down
    if report is not None:
        _add_report(message, report)
        for moved in report.pairs:
            if (peer := pairs.get(moved.peer_id)) is not None:
                for counter in moved.counters:
                    setattr(peer, counter.name, counter.value)
    message.peers.extend(pairs.values())
    return message


def peer_status(pair: Pair) -> kv_pb2.PeerStatus:
    """A pair without its counters."""
    return kv_pb2.PeerStatus(
        instance_id=pair.remote.instance_id,
        epoch=pair.remote.epoch,
        transport=pair.transport,
        state=pair.state_name,
        not_shared=pair.not_shared,
        staged=bool(pair.staged),
        staged_because=pair.staged,
    )


def _add_report(message: kv_pb2.InstanceStatus, report: native.StatusReport) -> None:
    message.num_blocks = report.num_blocks
    message.num_free_blocks = report.num_free
    message.num_owned_blocks = report.num_owned
    message.num_cached_blocks = report.num_cached
    message.num_quarantined_blocks = report.num_quarantined
    message.num_running = report.num_running
    message.num_waiting = report.num_waiting
    message.num_handoffs = report.num_handoffs
    message.num_steps = report.num_steps
    message.queued_tokens = report.queued_tokens
    for counter in report.counters:
        message.counters.add(name=counter.name, value=counter.value)
