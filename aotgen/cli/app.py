"""The verbs of the ``aotgen`` command, collected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

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
from aotgen.cli.common import help_alone

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
CommandLineError: type[Exception] = next(
    c
    for c in typer.BadParameter.__mro__
    if c.__name__ == "ClickException" and issubclass(c, Exception)
)
"""What typer raises for words that are no command line."""


def run_words(words: Sequence[str]) -> None:
    """Run a command line. Whatever it raises comes through: typer's own ``main`` would answer some
    exceptions (Ctrl-C, a pipe without a reader) by lines and codes of its own.
    """
    command = typer.main.get_command(app)
    with command.make_context("aotgen", list(words)) as context:
        command.invoke(context)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"aotgen {aotgen.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show Python tracebacks of errors.")
    ] = False,
) -> None:
    help_alone(context)


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
