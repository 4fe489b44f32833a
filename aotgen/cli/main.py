"""The ``aotgen`` command: collects the verbs; a failure becomes one line and an exit code.

Results go to stdout; progress, messages and errors to stderr.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import typer

import aotgen
from aotgen.cli import analyze, bench, boards, check, compile, run, validate
from aotgen.errors import AotgenError, InternalError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="aotgen",
    help="Turn a trained neural network into a small standalone C project with SIMD kernels.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Depending on the release, typer brings click along or depends on it: its base error is found from
# typer's own.
_CommandLineError: type[Exception] = next(
    c
    for c in typer.BadParameter.__mro__
    if c.__name__ == "ClickException" and issubclass(c, Exception)
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"aotgen {aotgen.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show Python tracebacks of errors."),
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(EXIT_USAGE)


app.command("check")(check.check)
app.command("analyze")(analyze.analyze)
app.command("compile")(compile.compile_)
app.command("run")(run.run)
app.command("validate")(validate.validate)
app.command("bench")(bench.bench)
app.add_typer(boards.app, name="boards")


def call(arguments: Sequence[str]) -> int:
    """Run the command line ``arguments`` (without the program's name); returns the exit code."""
    debug = "--debug" in arguments
    words = [word for word in arguments if word != "--debug"]
    try:
        result = app(args=words, prog_name="aotgen", standalone_mode=False)
        sys.stdout.flush()
    except typer.Exit as stop:
        return int(stop.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", EXIT_INTERRUPTED, debug)
    except BrokenPipeError:
        # The reader of our output has gone (as `head` does); Python would complain once more at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except InternalError as error:
        return _fail(f"internal error: {error}; please report it", error.exit_code, debug)
    except AotgenError as error:
        return _fail(str(error), error.exit_code, debug)
    except _CommandLineError as error:
        text = getattr(error, "format_message", error.__str__)()
        return _fail(str(text), EXIT_USAGE, debug)
    except MemoryError:
        text = "this computer has too little memory for the model; bind smaller input shapes"
        return _fail(text, EXIT_USAGE, debug)
    except Exception as error:
        text = f"internal error: {type(error).__name__}: {error}; please report it"
        return _fail(f"{text} (--debug shows where)", InternalError.exit_code, debug)
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    one_line = " ".join(message.split())
    print(f"aotgen: error: {one_line}", file=sys.stderr)
    return code


def main() -> None:
    """Entry point of the ``aotgen`` script."""
    sys.exit(call(sys.argv[1:]))
