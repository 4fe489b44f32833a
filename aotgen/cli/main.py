"""The ``aotgen`` command: collects the verbs; a failure becomes one line and an exit code.

Results go to stdout; progress, messages and errors to stderr.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType

import typer

import aotgen
from aotgen.cli import (
    analyze,
    bench,
    boards,
    bundle,
    check,
    compare,
    compile,
    journal,
    run,
    tune,
    validate,
    worker,
)
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
app.command("bundle")(bundle.bundle)
app.command("run")(run.run)
app.command("validate")(validate.validate)
app.command("bench")(bench.bench)
app.command("compare")(compare.compare)
app.command("tune")(tune.tune)
app.command("worker")(worker.worker)
app.add_typer(journal.app, name="journal")
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
        if type(error).__name__ == "NoArgsIsHelpError":  # a group of commands alone
            print(error, file=sys.stderr)
            return EXIT_USAGE
        text = getattr(error, "format_message", error.__str__)()
        return _fail(str(text), EXIT_USAGE, debug)
    except MemoryError:
        text = "this computer has too little memory for the model; bind smaller input shapes"
        return _fail(text, EXIT_USAGE, debug)
    except Exception as error:
        text = f"internal error: {type(error).__name__}: {error}; please report it"
        return _fail(f"{text} (--debug shows where)", InternalError.exit_code, debug)
    if result == EXIT_INTERRUPTED:  # what some releases of typer make of a KeyboardInterrupt
        return _fail("interrupted", EXIT_INTERRUPTED, debug)
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    one_line = " ".join(message.split())
    print(f"aotgen: error: {one_line}", file=sys.stderr)
    return code


def main() -> None:
    """Entry point of the ``aotgen`` script. Whoever ends it by a signal wants it to end as by
    Ctrl-C, with nothing left on a board.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, stop)
    code = call(sys.argv[1:])
    sys.exit(128 + received[0] if received and code == EXIT_INTERRUPTED else code)
