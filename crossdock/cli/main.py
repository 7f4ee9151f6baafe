"""The entry point of the `crossdock` command: its tree of commands, and how it reports errors."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Final

import typer
from rich.console import Console

from crossdock.cli import doctor_command, fleet_commands, model_commands, request_commands
from crossdock.cli.errors import CliError
from crossdock.errors import CrossdockError
from crossdock.models import ModelError

# As a shell reports a program that Ctrl-C ended.
INTERRUPTED_EXIT_CODE: Final = 130
# Of a text that is at fault.
_SHOWN_CHARACTERS: Final = 64

app = typer.Typer(
    help="LLM serving with prefill and decode as separate services.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(fleet_commands.up)
app.command("down")(fleet_commands.down)
app.command("status")(fleet_commands.status)
app.command("generate")(request_commands.generate)
app.command("chat")(request_commands.chat)
app.command("doctor")(doctor_command.doctor)
app.add_typer(model_commands.app, name="model")


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(version("crossdock"))
        except PackageNotFoundError:
            typer.echo("not installed")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it and end."),
    ] = False,
) -> None:
    pass


def run() -> None:
    """Runs the command line. What the user can act on is one line on stderr, never a traceback."""
    try:
        app()
    except (CliError, ModelError, CrossdockError) as error:
        _print_error(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT_CODE)
    except BrokenPipeError:
        # The reader of our output has gone, as with `| head`.
        sys.stderr.close()
        sys.exit(1)
    except UnicodeEncodeError as error:
        # Python lets bytes of an argument that are no UTF-8 through as lone surrogates.
        _print_error(f"not UTF-8: {str(error.object)[:_SHOWN_CHARACTERS]!a}")
        sys.exit(1)
    except OSError as error:
        # A disk that is full or may not be written, a file that may not be read.
        _print_error(str(error))
        sys.exit(1)


def _print_error(text: str) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error:[/] {_escape(text)}")


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
