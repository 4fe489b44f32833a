"""Requests to a board and its replies, over a line that may lose, change or repeat bytes.

One request is under way at a time. It is sent again until its reply arrives; the board carries it
out once, however often it came. A board that was restarted knows no session any more: what is
asked of it then fails with ``SessionLost``, and whoever asked begins anew.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator

from aotgen.errors import BoardError
from aotgen.runner.base import LinkError
from aotgen.runner.protocol import (
    FAULT,
    MAX_PAYLOAD,
    REPLY,
    Frame,
    FrameReader,
    Hello,
    Request,
    Status,
    parse_hello,
)
from aotgen.runner.serial_port import Port

HELLO_S = 8.0
"""A board that runs our firmware answers a hello within this time, also while it starts."""

ANSWER_S = 20.0
"""For what takes a board no time; most of it is for a bad line."""

_FIRST_WAIT_S = 0.3
_LONGEST_WAIT_S = 1.0
_PATIENT_WAIT_S = 4.0
"""For what takes the board a while."""

_PART_S = 4.0
"""After which a part of a transfer is tried in a shorter frame."""

_LEAST_CHUNK = 32
_PART_HEAD = 6
"""Bytes of a payload beside the tensor's, at most."""

_CLEAN_TRANSFERS = 8
"""After so many without a fault frames become longer again."""

_SILENCE_S = 0.1
"""Without a byte in the middle of a frame, after which it is given up."""

_MODEL_ERRORS = {
    -1: "a pointer that must not be NULL is NULL",
    -2: "arena, state or weights are not aligned",
    -3: "the weights are not linked in",
}

_STATUS_WORDS = {
    Status.BAD_REQUEST: "does not know the request",
    Status.OUT_OF_RANGE: "has no such tensor, layer or bytes",
    Status.NOT_NOW: "cannot do that in a traced run, or only there",
    Status.INPUTS_LOST: "has other inputs than those that were sent",
    Status.NOT_BUILT: "was built without the trace hook (<MODEL>_TRACE)",
}


class NoAnswer(LinkError):
    """The board has not answered in time."""


class SessionLost(LinkError):
    """The board was restarted: it knows nothing of what was sent to it before."""


class Refused(BoardError):
    """The board answered with a status other than OK."""

    def __init__(self, request: Request, status: int, data: bytes) -> None:
        self.status = status
        super().__init__(f"the board {_refusal(status, data)} ({request.name.lower()})")


class Crashed(BoardError):
    """The board's fault handler has told of a fault; the board restarts.

    Attributes:
        what: it was, in words.
        where: the address, empty when that is not known.
    """

    def __init__(self, what: str, where: str, status: int) -> None:
        self.what, self.where = what, where
        super().__init__(
            f"the board crashed: {what}{where} (CFSR 0x{status:08x})",
            remedy="addr2line -e <model>_firmware.elf names the line; a stack that is too small is"
            " the usual reason",
        )


def model_error(code: int) -> str:
    """An error of init or run in words."""
    return _MODEL_ERRORS.get(code, f"error {code}")


def _refusal(status: int, data: bytes) -> str:
    if status == Status.MODEL_ERROR and len(data) == 4:
        return f"cannot run the model: {model_error(*struct.unpack('<i', data))}"
    known = {int(key): words for key, words in _STATUS_WORDS.items()}
    return known.get(status, f"answered with status {status}")


class SerialLink:
    """A session with the board at a port.

    Attributes:
        payload_bytes: of a tensor that fit into a frame.
    """

    def __init__(self, port: Port) -> None:
        self.port = port
        self._reader = FrameReader()
        self._session = 0
        self._sequence = 0
        self._random = random.SystemRandom()
        self.payload_bytes = _LEAST_CHUNK
        self._chunk = MAX_PAYLOAD
        self._clean = 0

    def hello(self, timeout: float = HELLO_S) -> Hello:
        """Begin a new session.

        Raises:
            LinkError: the board does not answer within ``timeout`` seconds.
            BoardError: it speaks another version of the protocol.
        """
        old = self._session
        while self._session in (0, old):
            self._session = self._random.randrange(1, 1 << 16)
        self._sequence = 0
        told = parse_hello(self.request(Request.HELLO, timeout=timeout))
        self.payload_bytes = told.max_payload - _PART_HEAD
        return told

    def models(self, first: Hello) -> Iterator[Hello]:
        """What the board tells of each of its models, ``first`` in the answer to a hello. A model
        is the chosen one from then on until the next one is asked for.

        Raises:
            BoardError: as ``request``.
        """
        yield first
        for index in range(1, 1 << 16) if first.choice else ():
            try:
                data = self.request(Request.SELECT, struct.pack("<H", index))
            except Refused as error:
                if error.status != Status.OUT_OF_RANGE:
                    raise
                return
            yield parse_hello(data)

    def request(
        self, request: Request, payload: bytes = b"", timeout: float = ANSWER_S, size: int = 0
    ) -> bytes:
        """Ask the board, as often as it takes.

        Args:
            request: its type.
            payload: what it needs.
            timeout: seconds until the board counts as dead.
            size: bytes of payload that are expected back, where they are many.

        Returns:
            The reply's payload behind its status.

        Raises:
            SessionLost: the board was restarted.
            Refused: the board cannot do it.
            NoAnswer: none within ``timeout`` seconds.
            LinkError: the port broke.
            BoardError: the board crashed.
        """
        self._sequence = (self._sequence + 1) & 0xFFFF
        frame = Frame(request, self._session, self._sequence, payload).encode()
        line_s = (len(frame) + size + 64) * 10 / self.port.baud
        until = time.monotonic() + timeout + 4 * line_s
        wait = _FIRST_WAIT_S + line_s
        longest = line_s + (_PATIENT_WAIT_S if timeout > ANSWER_S else _LONGEST_WAIT_S)
        sent = 0
        while (left := until - time.monotonic()) > 0:
            self.port.write(frame)
            sent += 1
            data = self._reply(request, min(wait, left))
            if data is not None:
                self._learn(len(payload) + size, sent)
                return self._checked(request, data)
            wait = min(wait * 1.5, longest)
        raise self._silent(request, timeout)

    def transfer(
        self, request: Request, count: int, unit: int, payload: Callable[[int, int], bytes]
    ) -> bytes:
        """Ask for something in parts, shorter ones over a bad line.

        Args:
            request: that may be made twice without harm.
            count: elements in all.
            unit: bytes of one.
            payload: of the request for (first element, number of elements).

        Returns:
            The replies' payloads, one after the other.

        Raises:
            BoardError: as ``request``.
        """
        found = bytearray()
        at = 0
        while at < count:
            part = max(min(self._chunk, self.payload_bytes) // unit, 1)
            part = min(part, count - at)
            short = part * unit <= _LEAST_CHUNK
            try:
                given = payload(at, part)
                timeout = ANSWER_S if short else _PART_S
                found += self.request(request, given, timeout, part * unit)
                at += part
            except NoAnswer:
                if short:
                    raise
                self._learn(part * unit, sent=2)
        return bytes(found)

    def _learn(self, size: int, sent: int) -> None:
        """What became of a transfer of ``size`` bytes that was ``sent`` so often."""
        if size < _LEAST_CHUNK:
            return
        if sent > 1:
            self._chunk = max(min(self._chunk, size) // 2, _LEAST_CHUNK)
            self._clean = 0
            return
        self._clean += 1
        if self._clean >= _CLEAN_TRANSFERS:
            self._chunk = min(self._chunk * 2, MAX_PAYLOAD)
            self._clean = 0

    def _reply(self, request: Request, wait: float) -> bytes | None:
        """The payload of the reply to the current request; None when it does not come in time."""
        until = time.monotonic() + wait
        while (left := until - time.monotonic()) > 0:
            data = self.port.read(min(left, _SILENCE_S))
            for frame in self._reader.feed(data) if data else self._reader.give_up():
                if frame.type == FAULT:
                    raise _crash(frame.payload)
                known = (frame.session, frame.sequence) == (self._session, self._sequence)
                if known and frame.type == request | REPLY and frame.payload:
                    return frame.payload
        return None

    def _checked(self, request: Request, payload: bytes) -> bytes:
        status, data = payload[0], payload[1:]
        if status == Status.OK:
            return data
        if status == Status.NO_SESSION:
            raise SessionLost(
                f"the board at {self.port.name} was restarted",
                remedy="check its supply, and that its watchdog lets a run of the model end",
            )
        raise Refused(request, status, data)

    def _silent(self, request: Request, timeout: float) -> NoAnswer:
        text = self._reader.last_text()
        printed = f"; it printed {text!r}" if text else ""
        if request is not Request.HELLO:
            return NoAnswer(
                f"the board at {self.port.name} has not answered for {timeout:g} s"
                f" ({request.name.lower()}){printed}",
                remedy="check the cable; a board that hangs needs a reset",
            )
        return NoAnswer(
            f"no board answers at {self.port.name}, {self.port.baud} baud{printed}",
            remedy="check the cable, the baud rate, that the firmware of the project is flashed,"
            " and that no debugger holds the core",
        )

    def close(self) -> None:
        """May be called twice."""
        self.port.close()


def _crash(payload: bytes) -> BoardError:
    """From a frame of the board's fault handler."""
    try:
        pc, status = struct.unpack_from("<II", payload, 1)
        what = payload[9:].decode("ascii", errors="replace")
    except struct.error:
        return BoardError("the board crashed")
    where = f" at address 0x{pc:08x}" if pc else ""
    return Crashed(what, where, status)
