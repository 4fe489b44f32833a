"""The serial protocol between this computer and a microcontroller: frames and their contents.

``templates/firmware/aot_link.h.j2`` and ``aot_device.c.j2`` are its other side, docs/serial.md
describes it. Nothing here reads or writes a port: ``serial_link.py`` does.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from aotgen.errors import BoardError

VERSION = 1

SYNC = 0xC5

REPLY = 0x80
"""Set in the type of a reply."""

MAX_PAYLOAD = 4096
"""No firmware's payloads are longer; what claims to be is no frame."""

_WORDS = re.compile(rb"[ -~]{4,}")

_HEADER = struct.Struct("<BBHHHH")
_CRC = struct.Struct("<I")


class Request(IntEnum):
    """Types of requests; ``docs/serial.md`` has their payloads. MEASURE and LAST are of the program
    that tuning runs (``templates/tune/firmware.c.j2``).
    """

    HELLO = 0x01
    ECHO = 0x02
    WRITE = 0x03
    RUN = 0x04
    READ = 0x05
    RESET = 0x06
    TRACE = 0x07
    NEXT = 0x08
    VIEW = 0x09
    WEIGHTS = 0x0A
    BENCH = 0x0B
    PROFILE = 0x0C
    STACK = 0x0D
    RESTART = 0x0E
    SELECT = 0x0F
    MEASURE = 0x10
    LAST = 0x11


FAULT = 0x7F | REPLY
"""Type of the one frame that a board sends unasked: its fault handler's."""


class Status(IntEnum):
    """The first byte of a reply."""

    OK = 0
    NO_SESSION = 1
    BAD_REQUEST = 2
    OUT_OF_RANGE = 3
    NOT_NOW = 4
    INPUTS_LOST = 5
    MODEL_ERROR = 6
    NOT_BUILT = 7


@dataclass(frozen=True)
class Frame:
    """A request or a reply."""

    type: int
    session: int
    sequence: int
    payload: bytes = b""

    def encode(self) -> bytes:
        """Its bytes on the line."""
        head = _HEADER.pack(SYNC, self.type, self.session, self.sequence, len(self.payload), 0)[:-2]
        crc = zlib.crc32(head[1:])
        check = struct.pack("<H", crc & 0xFFFF)
        return head + check + self.payload + _CRC.pack(zlib.crc32(self.payload, crc))


class FrameReader:
    """Finds frames in what arrives; damaged ones and all that is none is passed over.

    Attributes:
        text: the last bytes outside of frames: what else the board prints.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        self.text = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take what has arrived; yields the frames that it completes."""
        self._data += data
        while self._data:
            size = self._frame_bytes()
            if size == 0:
                self._skip()
            elif len(self._data) < size or size == _HEADER.size:
                return
            else:
                frame = self._decode(size)
                del self._data[:size]
                yield frame

    def give_up(self) -> Iterator[Frame]:
        """Nothing more arrives of the frame that has begun: yields those that lie behind it."""
        if self._data:
            self._skip()
        yield from self.feed(b"")

    def _frame_bytes(self) -> int:
        """Bytes of the frame at the start, as far as they tell; 0: it is none."""
        if self._data[0] != SYNC:
            return 0
        if len(self._data) < _HEADER.size:
            return _HEADER.size
        *_, length, check = _HEADER.unpack_from(self._data)
        crc = zlib.crc32(self._data[1:8])
        if length > MAX_PAYLOAD or check != crc & 0xFFFF:
            return 0
        end = _HEADER.size + int(length)
        if len(self._data) >= end + _CRC.size:
            (told,) = _CRC.unpack_from(self._data, end)
            if told != zlib.crc32(self._data[_HEADER.size : end], crc):
                return 0
        return end + _CRC.size

    def _decode(self, size: int) -> Frame:
        _, type_, session, sequence, _, _ = _HEADER.unpack_from(self._data)
        return Frame(type_, session, sequence, bytes(self._data[_HEADER.size : size - _CRC.size]))

    def _skip(self) -> None:
        """On to the next byte that may begin a frame."""
        next_ = self._data.find(SYNC, 1)
        end = len(self._data) if next_ < 0 else next_
        self.text += self._data[:end]
        del self.text[:-400]
        del self._data[:end]

    def last_text(self) -> str:
        """The last words outside of frames that people can read; empty when there are none."""
        told = [bytes(run).strip() for run in _WORDS.findall(self.text)]
        return next((run[:120].decode("ascii") for run in reversed(told) if len(run) > 3), "")


def firmware_id(manifest: Mapping[str, Any]) -> str:
    """What tells a project's firmware from any other: 32 hex digits, of all that its manifest has,
    so of the model, the options, the kernels and the weights.
    """
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Hello:
    """What a board tells about itself.

    Attributes:
        version: of the protocol.
        traces: whether the firmware can trace and profile layers.
        choice: whether it has several models, of which SELECT chooses one; what is told here of the
            model is that of the chosen one, in a new session the first.
        max_payload: bytes of a frame.
        layers: of the model.
        firmware: see ``firmware_id``.
        error: of the model's init function; 0 for none.
        ticks_hz: ticks of its clock in a second.
        arena_bytes, state_bytes, weights_bytes, input_bytes, output_bytes: of the model.
        stack_bytes: of the board's stack; 0 when unknown.
        model: its prefix.
        board: that it was compiled for.
        core: likewise.
        tool_version: of the aotgen that made it.
    """

    version: int
    traces: bool
    choice: bool
    max_payload: int
    layers: int
    firmware: str
    error: int
    ticks_hz: int
    arena_bytes: int
    state_bytes: int
    weights_bytes: int
    input_bytes: int
    output_bytes: int
    stack_bytes: int
    model: str
    board: str
    core: str
    tool_version: str


_HELLO = struct.Struct("<BBBHH16si7I")


def parse_hello(data: bytes) -> Hello:
    """The payload of a hello's reply, or of a SELECT's, without its status.

    Raises:
        BoardError: the board speaks another version, or it makes no sense.
    """
    if data and data[0] != VERSION:
        raise BoardError(
            f"the board's firmware speaks version {data[0]} of the protocol, this aotgen {VERSION}",
            remedy="compile the model again with this aotgen and flash it",
        )
    try:
        version, flags, count, payload, layers, name, error, *sizes = _HELLO.unpack_from(data)
        words = [word.decode("ascii", "replace") for word in data[_HELLO.size :].split(b"\0")]
        ticks_hz, arena, state, weights, inputs, outputs, stack = sizes
        model, board, core, tool = words[:4]
        if count < 4 or not 64 <= payload <= MAX_PAYLOAD or ticks_hz == 0:
            raise ValueError(f"{count} names, payloads of {payload} bytes, {ticks_hz} ticks")
    except (struct.error, ValueError) as error_:
        raise BoardError(f"the board's hello makes no sense ({error_})") from error_
    return Hello(
        version=version,
        traces=bool(flags & 1),
        choice=bool(flags & 4),
        max_payload=payload,
        layers=layers,
        firmware=name.hex(),
        error=error,
        ticks_hz=ticks_hz,
        arena_bytes=arena,
        state_bytes=state,
        weights_bytes=weights,
        input_bytes=inputs,
        output_bytes=outputs,
        stack_bytes=stack,
        model=model,
        board=board,
        core=core,
        tool_version=tool,
    )


@dataclass(frozen=True)
class RunReply:
    """What a run tells when it has ended.

    Attributes:
        ticks: that it took.
        outputs_crc: CRC-32 of all outputs, one after the other.
    """

    ticks: int
    outputs_crc: int


@dataclass(frozen=True)
class LayerReply:
    """An output of a layer in a traced run, which waits there.

    Attributes:
        layer: its number.
        elem_bytes: of an element.
        crc: CRC-32 of its elements in row-major order.
        dims: its extents.
    """

    layer: int
    elem_bytes: int
    crc: int
    dims: tuple[int, ...]


def parse_event(data: bytes) -> RunReply | LayerReply:
    """The payload of a reply to a run, or to a step of a traced one.

    Raises:
        BoardError: it makes no sense.
    """
    try:
        if data[0] == 0:
            return RunReply(*struct.unpack("<II", data[1:]))
        layer, ndim, elem_bytes, crc = struct.unpack_from("<HBBI", data, 1)
        return LayerReply(layer, elem_bytes, crc, struct.unpack(f"<{ndim}I", data[9:]))
    except (struct.error, IndexError) as error:
        raise BoardError(f"the board's reply to a run makes no sense ({error})") from error
