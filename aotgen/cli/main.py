"""The ``aotgen`` command: how it starts and ends; a failure becomes one line and an exit code.

Results go to stdout; progress, messages and errors to stderr. The verbs are in ``app``, which is
loaded when the handlers of signals stand.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import TextIOWrapper

from aotgen.cli.interruption import EXIT_INTERRUPTED, MESSAGE, Interruption

EXIT_NO_READER = 141
"""As of a program that SIGPIPE ended: ``aotgen analyze ... | head`` is neither success nor a
mismatch.
"""

_OF_THE_COMPUTER = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM)
    + (errno.ENAMETOOLONG, errno.ELOOP, errno.EMFILE, errno.ENFILE, errno.EBADF)
)
"""Errors of files that are no mistake of ours, wherever they come from."""


def call(arguments: Sequence[str], stopped: Callable[[], bool] = lambda: False) -> int:
    """Run the command line ``arguments`` (without the program's name); returns the exit code.

    Args:
        arguments: words of the command line.
        stopped: whether a signal was to end the command: what fails behind it does so for that,
            also where an extension module made another exception of the KeyboardInterrupt.
    """
    import typer

    from aotgen.cli.app import CommandLineError, run_words
    from aotgen.errors import AotgenError, InternalError, UsageError

    debug = "--debug" in arguments
    try:
        run_words([word for word in arguments if word != "--debug"])
        sys.stdout.flush()
    except typer.Exit as stop:
        return int(stop.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(debug)
    except BrokenPipeError:
        return EXIT_NO_READER
    except InternalError as error:
        return _fail(f"internal error: {error}; please report it", error.exit_code, debug)
    except AotgenError as error:
        return _fail(str(error), error.exit_code, debug)
    except CommandLineError as error:
        text = getattr(error, "format_message", error.__str__)()
        return _fail(str(text), UsageError.exit_code, debug)
    except MemoryError:
        text = "this computer has too little memory for the model; bind smaller input shapes"
        return _fail(text, UsageError.exit_code, debug)
    except Exception as error:
        if stopped():
            return _interrupted(debug)
        if isinstance(error, OSError) and error.errno in _OF_THE_COMPUTER:
            where = f"{error.filename}: " if error.filename is not None else "cannot write: "
            return _fail(f"{where}{error.strerror}", UsageError.exit_code, debug)
        text = f"internal error: {type(error).__name__}: {error}; please report it"
        return _fail(f"{text} (--debug shows where)", InternalError.exit_code, debug)
    return 0


def _interrupted(debug: bool) -> int:
    return _fail(MESSAGE.rpartition(": ")[2], EXIT_INTERRUPTED, debug)


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    one_line = " ".join(message.split())
    with suppress(OSError):
        print(f"aotgen: error: {one_line}", file=sys.stderr)
    return code


def _drop_unwritten() -> None:
    """Python would complain at exit once more of what cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _to_nowhere(stream.fileno())


def _to_nowhere(descriptor: int) -> None:
    """What is still written to the file descriptor is dropped."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _prepare_streams() -> None:
    """Standard streams that can always be written to.

    One that the caller has closed leads to nowhere: no file of ours may get its number, which child
    processes would write to. A file's name that is no UTF-8, or characters that the terminal lacks,
    are shown as escapes.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            _to_nowhere(descriptor)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r"))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def main() -> None:
    """Entry point of the ``aotgen`` script and of ``python -m aotgen``."""
    interruption = Interruption()
    interruption.install()
    _prepare_streams()
    import aotgen.cli.app  # noqa: F401  (while a signal ends the process at once)

    try:
        interruption.begin()
        code = interruption.finish(call(sys.argv[1:], lambda: interruption.received is not None))
    except KeyboardInterrupt:  # while a failure was told
        code = interruption.finish(_interrupted(debug=False))
    _drop_unwritten()
    sys.exit(code)
