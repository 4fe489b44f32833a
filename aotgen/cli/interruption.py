"""What a signal that ends the command does: at any moment one line and an exit code.

Imports nothing but the standard library's smallest modules: its handlers must stand before the
rest is loaded.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 130
MESSAGE = "aotgen: error: interrupted"

_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)
_LATER_S = 0.05


class Interruption:
    """The handlers of SIGINT (Ctrl-C), SIGTERM and SIGHUP.

    Between ``begin`` and ``finish`` they raise KeyboardInterrupt: whoever ends the command by a
    signal wants it to end as by Ctrl-C, with nothing left on a board. Not in the midst of an
    import, where extension modules drop exceptions or make others of them: there it waits. Before
    and behind, while the verbs are loaded and when all is done, there is nothing to tidy up, and
    the process ends at once.

    Attributes:
        received: the first signal's number; None before.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._raises = False
        self._ended = False

    def install(self) -> None:
        """Handle the signals from now on, except those that are ignored (``nohup`` does that)."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) in _DEFAULTS:
                signal.signal(number, self._handle)
        signal.signal(signal.SIGALRM, self._handle_again)
        sys.unraisablehook = self._not_lost
        atexit.register(self._leave)  # the first of all: it is called last

    def begin(self) -> None:
        """From now on a signal raises KeyboardInterrupt."""
        self._raises = True

    def finish(self, code: int) -> int:
        """No longer. Returns the exit code of a command that ended with ``code``: as a shell
        reports a program that the signal ended, where one did.
        """
        self._raises = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._ended = code == EXIT_INTERRUPTED
        return self._exit_code if self._ended else code

    @property
    def _exit_code(self) -> int:
        return EXIT_INTERRUPTED if self.received is None else 128 + self.received

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = self.received is None
        if first:
            self.received = number
        if self._raises:
            if _loads(frame):
                self._again()
                return
            raise KeyboardInterrupt
        if first:
            os.write(2, f"{MESSAGE}\n".encode())
        os._exit(self._exit_code)

    def _again(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, _LATER_S)

    def _handle_again(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self._handle(self.received, frame)

    def _not_lost(self, lost: sys.UnraisableHookArgs) -> None:
        """Python drops what a finalizer or a C callback raises: then the signal comes again, not
        at once, as the handler would raise in here.
        """
        if issubclass(lost.exc_type, KeyboardInterrupt) and self.received is not None:
            self._again()
        else:
            sys.__unraisablehook__(lost)

    def _leave(self) -> None:
        """A KeyboardInterrupt that has passed through ``exec``, as in the making of dataclasses,
        makes Python end by SIGINT, whatever the exit code was to be.
        """
        if self._ended:
            sys.stderr.flush()
            os._exit(self._exit_code)


def _loads(frame: FrameType | None) -> bool:
    """Whether a verb is loading a module."""
    while frame is not None and frame.f_globals.get("__name__") != "aotgen.cli.main":
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
