"""`crossdock generate` and `crossdock chat`: requests to a fleet's router, streamed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from io import TextIOWrapper
from typing import Annotated

import typer

from crossdock.api.v1.inference_pb2 import ChatMessage, SamplingParams
from crossdock.cli import fleet_record
from crossdock.cli.client import Outcome, RouterClient
from crossdock.cli.console import table_console
from crossdock.cli.errors import CliError
from crossdock.cli.timings import timings_table
from crossdock.errors import CrossdockError
from crossdock.rpc.channel import is_address

# A day: gRPC takes one of centuries for one that has passed.
_TIMEOUT_MAX_S = 86_400.0


def _check_address(address: str) -> str:
    if address and not is_address(address):
        raise typer.BadParameter(f"{address!r} is not HOST:PORT")
    return address


def _check_timeout(timeout_s: float) -> float:
    # NaN is in no range, but escapes one that compares its ends.
    if not 0.0 < timeout_s <= _TIMEOUT_MAX_S:
        raise typer.BadParameter(f"{timeout_s:g} is not in (0, {_TIMEOUT_MAX_S:g}] seconds")
    return timeout_s


AddressOption = Annotated[
    str,
    typer.Option(
        callback=_check_address,
        help="Of the router, HOST:PORT; without it, the fleet that `up` started.",
    ),
]
NameOption = Annotated[str, typer.Option(help="The fleet's name, as given to `up`.")]
ModelOption = Annotated[str, typer.Option(help="Without it, the fleet's model.")]
MaxTokensOption = Annotated[
    int | None, typer.Option(min=1, max=2**31 - 1, help="Generate at most this many tokens.")
]
TemperatureOption = Annotated[float | None, typer.Option(help="0 takes the likeliest token.")]
TopKOption = Annotated[
    int | None, typer.Option(min=0, max=2**32 - 1, help="Choose among the K likeliest; 0: all.")
]
TopPOption = Annotated[float | None, typer.Option(help="Choose among this much probability.")]
SeedOption = Annotated[
    int | None, typer.Option(min=0, max=2**64 - 1, help="The same seed gives the same tokens.")
]
StopOption = Annotated[list[str] | None, typer.Option(help="End before this text; repeatable.")]
TimeoutOption = Annotated[
    float, typer.Option(callback=_check_timeout, help="Give up after this many seconds.")
]
TimingsOption = Annotated[bool, typer.Option("--timings", help="Say where the time went.")]

# Streams one request's text into its outcome.
Ask = Callable[[Outcome], AsyncIterator[str]]


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from stdin.")],
    address: AddressOption = "",
    name: NameOption = fleet_record.DEFAULT_NAME,
    model: ModelOption = "",
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the end of sequence.")
    ] = False,
    timeout: TimeoutOption = 600.0,
    timings: TimingsOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end.")
    ] = False,
) -> None:
    """Continue a prompt; the text is printed as it comes."""
    sampling = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop,
        ignore_eos=ignore_eos,
    )
    text = _read_stdin() if prompt == "-" else prompt
    router = address or fleet_record.find(name).router.address

    async def ask() -> Outcome:
        async with RouterClient(router, timeout) as client:
            return await _print_stream(
                lambda outcome: client.generate(text, model, sampling, outcome), quiet=as_json
            )

    outcome = asyncio.run(ask())
    if as_json:
        typer.echo(json.dumps(asdict(outcome), ensure_ascii=False))
    if timings:
        table_console(stderr=True).print(timings_table(outcome.timings, outcome.usage))


def chat(
    message: Annotated[str, typer.Argument(help="One question; without it, a conversation.")] = "",
    system: Annotated[str, typer.Option(help="What the model is told first.")] = "",
    address: AddressOption = "",
    name: NameOption = fleet_record.DEFAULT_NAME,
    model: ModelOption = "",
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    timeout: TimeoutOption = 600.0,
    timings: TimingsOption = False,
) -> None:
    """Talk to the model: one question, or a conversation until Ctrl-D."""
    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed
    )
    router = address or fleet_record.find(name).router.address
    console = table_console(stderr=True)
    turns = [ChatMessage(role="system", content=system)] if system else []

    async def answer(question: str) -> None:
        turns.append(ChatMessage(role="user", content=question))
        async with RouterClient(router, timeout) as client:
            outcome = await _print_stream(
                lambda filled: client.chat(turns, model, sampling, filled), quiet=False
            )
        turns.append(ChatMessage(role="assistant", content=outcome.text))
        if timings:
            console.print(timings_table(outcome.timings, outcome.usage))

    if message:
        asyncio.run(answer(message))
        return
    if isinstance(sys.stdin, TextIOWrapper):
        # What is no UTF-8 shows in the question rather than ending the conversation.
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    while True:
        try:
            question = console.input("[bold]> [/]").strip()
        except EOFError:
            return
        if question:
            try:
                asyncio.run(answer(question))
            except CrossdockError as error:
                # The conversation goes on without the question that failed.
                turns.pop()
                console.print(f"error: {error}", style="red", markup=False)


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise CliError(f"the prompt on stdin is not UTF-8 at byte {error.start}") from error


async def _print_stream(ask: Ask, *, quiet: bool) -> Outcome:
    outcome = Outcome()
    async for piece in ask(outcome):
        if not quiet:
            sys.stdout.write(piece)
            sys.stdout.flush()
    if not quiet:
        sys.stdout.write("\n")
    if not outcome.finish_reason:
        raise CliError("the router's stream ended without a finish reason")
    return outcome
