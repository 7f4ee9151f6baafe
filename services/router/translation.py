"""Between the public protos and the domain. Translation; fields that are not built are refused."""

from __future__ import annotations

from typing import Final

from crossdock.api.v1 import inference_pb2
from crossdock.errors import invalid_argument, unsupported
from services.router.generation import InferenceCall
from services.router.output import Delta, Ending, FinishReason
from services.router.prompting import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from services.router.sampling import SamplingRequest

# Known fields that are not built, and the value that asks for nothing.
_NOT_BUILT: Final[dict[str, float]] = {
    "n": 1,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_p": 0.0,
}

_REASON: Final = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: inference_pb2.FINISH_REASON_ABORT,
}


def to_generate_call(
    request: inference_pb2.GenerateRequest, timeout_s: float | None
) -> InferenceCall:
    """A Generate call as the domain takes it."""
    which = request.WhichOneof("prompt")
    prompt: Prompt
    if which == "text":
        prompt = TextPrompt(request.text, "text")
    elif which == "token_ids":
        prompt = TokenPrompt(tuple(request.token_ids.ids), "token_ids.ids")
    else:
        raise invalid_argument("prompt", "absent; must be text or token_ids")
    return InferenceCall(
        prompt=prompt,
        request_id=request.request_id,
        model=request.model,
        sampling=to_sampling_request(request.sampling),
        return_logit_digests=request.return_logit_digests,
        timeout_s=timeout_s,
    )


def to_chat_call(request: inference_pb2.ChatRequest, timeout_s: float | None) -> InferenceCall:
    """A Chat call as the domain takes it."""
    messages = tuple((message.role, message.content) for message in request.messages)
    return InferenceCall(
        prompt=ChatPrompt(messages),
        request_id=request.request_id,
        model=request.model,
        sampling=to_sampling_request(request.sampling),
        return_logit_digests=request.return_logit_digests,
        timeout_s=timeout_s,
    )


def to_sampling_request(params: inference_pb2.SamplingParams) -> SamplingRequest:
    """Absent stays absent. A field that is not built is refused when it asks for something."""
    for name, neutral in _NOT_BUILT.items():
        # `!=` is true of NaN, too.
        if params.HasField(name) and getattr(params, name) != neutral:  # type: ignore[arg-type]
            raise unsupported(f"sampling.{name}")
    if params.HasField("logprobs"):
        raise unsupported("sampling.logprobs")
    if params.json_schema:
        raise unsupported("sampling.json_schema")
    return SamplingRequest(
        temperature=params.temperature if params.HasField("temperature") else None,
        top_k=params.top_k if params.HasField("top_k") else None,
        top_p=params.top_p if params.HasField("top_p") else None,
        seed=params.seed if params.HasField("seed") else None,
        max_tokens=params.max_tokens if params.HasField("max_tokens") else None,
        min_tokens=params.min_tokens if params.HasField("min_tokens") else None,
        ignore_eos=params.ignore_eos,
        stop_token_ids=tuple(params.stop_token_ids),
        stop=tuple(params.stop),
        include_stop=params.include_stop_str_in_output,
        field_prefix="sampling.",
    )


def from_delta(request_id: str, delta: Delta) -> inference_pb2.GenerateResponse:
    """One message of the response stream."""
    response = inference_pb2.GenerateResponse(
        request_id=request_id,
        text=delta.text,
        token_ids=delta.token_ids,
        logit_digests=delta.logit_digests,
    )
    if delta.ending is not None:
        response.finish.CopyFrom(_from_ending(delta.ending))
    return response


def _from_ending(ending: Ending) -> inference_pb2.Finish:
    usage, timings, work = ending.usage, ending.timings, ending.timings.work
    return inference_pb2.Finish(
        reason=_REASON[ending.reason],
        matched_stop=ending.matched_stop,
        usage=inference_pb2.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_prompt_tokens=usage.cached_prompt_tokens,
        ),
        timings=inference_pb2.Timings(
            queue_ms=work.queue_ms,
            prefill_ms=work.prefill_ms,
            handoff_ms=work.handoff_ms,
            ttft_ms=timings.ttft_ms,
            tpot_ms=timings.tpot_ms,
            handoff_bytes=work.handoff_bytes,
            handoff_transfers=work.handoff_transfers,
            handoff_transfer_ms=work.handoff_transfer_ms,
            transport=timings.transport,
            attempts=timings.num_attempts,
            prefill_instance=timings.prefill_instance,
            decode_instance=timings.decode_instance,
        ),
    )
