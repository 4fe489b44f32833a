"""A serial port as a stream of bytes, with errors that say what to do about it."""

from __future__ import annotations

import errno
import os
import re
import select
import time
from abc import ABC, abstractmethod

from aotgen.errors import BoardError, UsageError
from aotgen.runner.base import LinkError

DEFAULT_BAUD = 115200

_SPEC = re.compile(r"serial:(?P<device>[^\s].*?)(?::(?P<baud>\d+))?")

_WRITE_S = 10.0
"""A port that takes no byte for so long is stuck: flow control, or a dead adapter."""


def parse_serial(spec: str) -> tuple[str, int]:
    """Device and baud rate of ``serial:/dev/ttyX[:baud]``.

    Raises:
        UsageError: it is malformed.
    """
    found = _SPEC.fullmatch(spec)
    if found is None:
        raise UsageError(
            f"runner {spec!r} names no serial port", remedy="use serial:/dev/ttyX[:baud]"
        )
    baud = int(found["baud"] or DEFAULT_BAUD)
    if not 300 <= baud <= 12_000_000:
        raise UsageError(
            f"runner {spec!r}: {baud} is no baud rate", remedy="115200 is the usual one"
        )
    return found["device"], baud


class Port(ABC):
    """Bytes to and from a board.

    Attributes:
        name: for messages.
        baud: bits a second, of which ten are a byte.
    """

    name: str
    baud: int

    @abstractmethod
    def write(self, data: bytes) -> None:
        """
        Raises:
            LinkError: it is broken.
        """

    @abstractmethod
    def read(self, timeout: float) -> bytes:
        """What has arrived; waits at most ``timeout`` seconds for a byte, then it is empty.

        Raises:
            LinkError: it is broken.
        """

    @abstractmethod
    def close(self) -> None:
        """May be called twice."""


class SerialPort(Port):
    """A port of this computer, opened for us alone, 8 bits, no parity, no flow control."""

    def __init__(self, device: str, baud: int) -> None:
        """
        Raises:
            BoardError: there is no such port, it is in use, or this user may not open it.
        """
        import serial

        self.name = device
        self.baud = baud
        try:
            self._port = serial.Serial(device, baud, timeout=0, exclusive=True)
        except (serial.SerialException, OSError, ValueError) as error:
            raise _refused(device, baud, error) from error
        self._fd = int(self._port.fileno())

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        until = time.monotonic() + _WRITE_S
        while left:
            try:
                _, ready, _ = select.select([], [self._fd], [], max(until - time.monotonic(), 0.0))
                if not ready:
                    raise LinkError(
                        f"{self.name} has taken no byte for {_WRITE_S:g} s",
                        remedy="switch the flow control of the adapter off, or plug it in again",
                    )
                done = os.write(self._fd, left)
            except BlockingIOError:
                continue
            except (OSError, ValueError) as error:
                raise self._broken(error) from error
            if done:
                until = time.monotonic() + _WRITE_S
            left = left[done:]

    def read(self, timeout: float) -> bytes:
        try:
            ready, _, _ = select.select([self._fd], [], [], max(timeout, 0.0))
            if not ready:
                return b""
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return b""
        except (OSError, ValueError) as error:
            raise self._broken(error) from error
        if not data:
            raise self._broken("end of file")
        return data

    def close(self) -> None:
        self._port.close()

    def _broken(self, error: object) -> LinkError:
        return LinkError(
            f"the connection to {self.name} broke ({error})",
            remedy="check the cable and the board's supply",
        )


def _refused(device: str, baud: int, error: Exception) -> BoardError:
    """What to say when a port cannot be opened."""
    number = getattr(error, "errno", None)
    if number is None and isinstance(error.__cause__, OSError):
        number = error.__cause__.errno
    if number in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
        others = _ports()
        known = f"there are {', '.join(others)}" if others else "this computer has no serial port"
        return BoardError(
            f"there is no serial port {device}", remedy=f"check the cable and the name; {known}"
        )
    if number == errno.EACCES:
        return BoardError(
            f"you may not open {device}",
            remedy="join the group that owns it (`sudo usermod -a -G dialout $USER`, then log in"
            " again)",
        )
    if number in (errno.EAGAIN, errno.EBUSY) or "lock" in str(error):
        return BoardError(
            f"another program has {device} open",
            remedy=f"close it (`fuser -v {device}` shows which one)",
        )
    if number in (errno.ENOTTY, errno.EISDIR) or "configure port" in str(error):
        return BoardError(f"{device} is no serial port", remedy="use serial:/dev/ttyX[:baud]")
    if isinstance(error, ValueError) or "baud" in str(error):
        return BoardError(
            f"{device} cannot do {baud} baud", remedy="use the rate that the firmware's HAL sets"
        )
    return BoardError(f"cannot open {device}: {error}")


def _ports() -> list[str]:
    """Names of this computer's serial ports, those behind USB."""
    from serial.tools import list_ports

    return sorted(port.device for port in list_ports.comports())[:4]
