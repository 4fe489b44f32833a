"""A model in the firmware of a microcontroller, over its serial line.

Whatever the line does, results are those of the model or there is an error: each frame has a CRC,
the board runs only on inputs whose CRC is the one that is asked for, outputs come with one, and a
board that was restarted is noticed. The run then begins anew, from its first step.
"""

from __future__ import annotations

import math
import statistics
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from aotgen.bench import BenchOptions, cores_in_use, layer_macs, peak_gops
from aotgen.bench_result import BenchResult, Cores, LayerTime
from aotgen.counting import LayerCost, RunCost, whole_instructions
from aotgen.errors import BoardError, UsageError
from aotgen.ir.types import Array
from aotgen.runner.model import Outputs, PlacedModel, split_outputs
from aotgen.runner.protocol import (
    Hello,
    LayerReply,
    Request,
    RunReply,
    Status,
    firmware_id,
    parse_event,
)
from aotgen.runner.qemu_plugin import Counts
from aotgen.runner.serial_link import HELLO_S, Refused, SerialLink, SessionLost, model_error
from aotgen.trace import Expected, TraceRecord, joined

if TYPE_CHECKING:
    from aotgen.manifest import Manifest
    from aotgen.target.board import Board

REPEAT_MS = 50.0
"""How long a repeat takes at least when nobody says how many runs it has."""

ATTEMPTS = 4
"""How often the same thing is begun anew when the board was restarted or has lost its inputs."""

SLOW_MACS_PER_S = 2e6

SLOWEST_MACS_PER_S = 2e5
"""A board that takes longer than with these multiply-accumulates a second has hung."""

_MAX_RUNS = 0xFFFF
_REQUEST_S = 10.0
"""Longest that runs of one request should take."""

_COUNTED_PROFILES = 5
"""Runs that tell how many instructions each layer has."""

_T = TypeVar("_T")


class SerialModel(PlacedModel):
    """A session with the board; the first request opens it."""

    def __init__(
        self,
        info: Manifest,
        board: Board,
        link: SerialLink,
        name: str,
        instruction_ns: float | None = None,
    ) -> None:
        """
        Args:
            info: of the project whose firmware the board should run.
            board: that it was compiled for.
            link: to the board.
            name: of the place, for reports.
            instruction_ns: that an instruction takes by the board's clock, where that is an
                emulator's; None for a real one.
        """
        self._info = info
        self._board = board
        self._link = link
        self._name = name
        self._instruction_ns = instruction_ns
        self._hello: Hello | None = None
        self._macs = sum(count for count, _ in layer_macs(info).values())
        self._run_s = 60.0 + self._macs / SLOWEST_MACS_PER_S

    def connect(self) -> Hello:
        """Begin a session: the board forgets what was going on.

        Raises:
            LinkError: no board answers.
            BoardError: it runs another firmware, or the model does not start there.
        """
        # Another host may have left a run under way.
        first = self._link.hello(HELLO_S + self._macs / SLOW_MACS_PER_S)
        hello = self._chosen(first)
        if hello.error:
            raise BoardError(f"the board cannot start the model: {model_error(hello.error)}")
        self._hello = hello
        return hello

    def run(
        self, steps: Sequence[Sequence[Array]], threads: int = 1, cores: Cores | None = None
    ) -> list[Outputs]:
        _one_core(cores)
        return self._again(lambda: [self._step(step) for step in self._fresh(steps)])

    def trace(
        self,
        steps: Sequence[Sequence[Array]],
        expected: Expected,
        threads: int = 1,
        cores: Cores | None = None,
    ) -> tuple[list[Outputs], list[TraceRecord]]:
        _one_core(cores)

        def once() -> tuple[list[Outputs], list[TraceRecord]]:
            records: list[TraceRecord] = []
            outputs = []
            for number, step in enumerate(self._fresh(steps)):

                def known(layer: int, output: int, number: int = number) -> Array | None:
                    return expected(number, layer, output)

                outputs.append(self._step(step, lambda e: records.extend(e), number, known))
            return outputs, records

        return self._again(once)

    def weight_crcs(self) -> dict[int, str]:
        def once() -> dict[int, str]:
            found = {}
            for index in range(self._ready.layers):
                data = self._ask(Request.WEIGHTS, struct.pack("<H", index), self._run_s)
                has, crc = _unpacked("<BI", data)
                if has:
                    found[index] = f"{crc:08x}"
            return found

        return self._again(once)

    def bench(self, threads: Sequence[int], options: BenchOptions) -> Iterator[BenchResult]:
        _one_core(options.cores)
        if options.sysfs_root is not None:
            raise UsageError("--sysfs-root: a microcontroller has no /sys")
        for _ in threads:
            times: list[float] = []
            number = options.number or 1
            time.sleep(options.cooldown)
            try:
                first = self._again(lambda: self._ticks(1)) / self._ready.ticks_hz
                self._again(lambda: self._ticks(options.warmup - 1, first))  # noqa: B023
                number = options.number or self._number(first)
                for _ in range(options.repeat):
                    ticks = self._again(lambda: self._ticks(number, first))  # noqa: B023
                    times.append(1e3 * ticks / self._ready.ticks_hz / number)
                layers = self._profile(options.repeat) if options.profile else []
                stack = self._again(self._stack)
            except BoardError:
                if times:
                    yield self._result(times, number)
                raise
            yield replace(self._result(times, number, layers), stack_bytes=stack, complete=True)

    @property
    def _ready(self) -> Hello:
        """What the board told when the session began."""
        return self._hello or self.connect()

    def _chosen(self, first: Hello) -> Hello:
        """What the board tells of the project's model, which it has chosen from here on.

        Raises:
            BoardError: the board runs something else than the project's firmware.
        """
        wanted = firmware_id(self._info.data)
        others = []
        for hello in self._link.models(first):
            if hello.firmware == wanted:
                return hello
            others.append(hello)
        same = next((o for o in others if o.model == self._info.prefix), None)
        found = same or first
        what = "another version of it" if same else ", ".join(repr(o.model) for o in others)
        raise BoardError(
            f"the board at {self._link.port.name} runs {what} (firmware {found.firmware[:8]},"
            f" compiled by aotgen {found.tool_version} for {found.board}), not the firmware of"
            f" {self._info.folder} ({wanted[:8]})",
            remedy=f"build {self._info.folder} and flash it; [flash] command in board.toml does"
            " so by itself",
        )

    def _again(self, once: Callable[[], _T]) -> _T:
        """``once``, begun anew in a new session where the board was restarted meanwhile."""
        for attempt in range(ATTEMPTS):
            try:
                _ = self._ready
                return once()
            except SessionLost:
                self._hello = None
                if attempt == ATTEMPTS - 1:
                    raise
            except BoardError:
                self._hello = None
                raise
        raise AssertionError("unreachable")

    def _ask(self, request: Request, payload: bytes = b"", timeout: float = 0.0) -> bytes:
        return (
            self._link.request(request, payload, timeout)
            if timeout
            else self._link.request(request, payload)
        )

    def _fresh(self, steps: Sequence[Sequence[Array]]) -> Iterator[Sequence[Array]]:
        """The steps, of an instance whose state is the initial one."""
        self._ask(Request.RESET)
        yield from steps

    def _step(
        self,
        inputs: Sequence[Array],
        keep: Callable[[list[TraceRecord]], object] | None = None,
        number: int = 0,
        known: Callable[[int, int], Array | None] | None = None,
    ) -> Outputs:
        """One run. With ``keep`` a traced one, whose records it gets."""
        data = [a.tobytes() for a in inputs]
        crc = 0
        for piece in data:
            crc = zlib.crc32(piece, crc)
        request = Request.RUN if keep is None else Request.TRACE
        for attempt in range(ATTEMPTS):
            self._write(data)
            try:
                event = parse_event(self._ask(request, struct.pack("<I", crc), self._run_s))
                break
            except Refused as error:
                # The board has not run: the inputs may have suffered, such as from another run.
                if error.status != Status.INPUTS_LOST or attempt == ATTEMPTS - 1:
                    raise
        records: list[TraceRecord] = []
        while isinstance(event, LayerReply):
            wanted = self._wanted(event, records, known)
            records.append(self._record(event, number, wanted))
            event = parse_event(self._ask(Request.NEXT, timeout=self._run_s))
        if keep is not None:
            if self._info.layers and not records:
                # As where aot_device.c has the hook and is linked with a model that has not.
                raise BoardError(
                    "the firmware at the board reports no layers",
                    remedy="link it with the src/<model>.c that is built with <MODEL>_TRACE, "
                    "as the project's CMake does",
                )
            keep(joined(records, self._info.layers))
        return split_outputs(self._info, self._outputs(event), 1)[0]

    def _wanted(
        self,
        event: LayerReply,
        records: Sequence[TraceRecord],
        known: Callable[[int, int], Array | None] | None,
    ) -> Array | None:
        """What a layer's event should have, behind these records; None where nobody asks."""
        before = [record for record in records if record.layer == event.layer]
        layer = self._info.layers[event.layer] if event.layer < len(self._info.layers) else None
        if known is None:
            return None
        if layer is None or not layer.by_rows:
            return known(event.layer, len(before))
        whole = known(event.layer, 0)
        if whole is None or whole.ndim < 2:
            return whole
        first = sum(record.shape[1] for record in before)
        return whole[:, first : first + event.dims[1]]

    def _write(self, inputs: Sequence[bytes]) -> None:
        for index, data in enumerate(inputs):
            self._link.transfer(
                Request.WRITE,
                len(data),
                1,
                lambda at, n, i=index, d=data: struct.pack("<HI", i, at) + d[at : at + n],  # type: ignore[misc]
            )

    def _outputs(self, reply: RunReply) -> bytes:
        """The bytes of all outputs, one after the other."""
        for _ in range(ATTEMPTS):
            data = b"".join(
                self._link.transfer(
                    Request.READ,
                    tensor.nbytes,
                    1,
                    lambda at, n, i=index: struct.pack("<HIH", i, at, n),  # type: ignore[misc]
                )
                for index, tensor in enumerate(self._info.outputs)
            )
            if zlib.crc32(data) == reply.outputs_crc:
                return data
        raise BoardError("the outputs that the board sends are not those that it has computed")

    def _record(self, event: LayerReply, step: int, wanted: Array | None) -> TraceRecord:
        """An output of a layer; read from the board only where it is not ``wanted``."""
        count = math.prod(event.dims)
        data = b"" if wanted is None else np.ascontiguousarray(wanted).tobytes()
        if data and (len(data), zlib.crc32(data)) != (count * event.elem_bytes, event.crc):
            data = self._view(event, count)
        return TraceRecord(event.layer, step, event.elem_bytes, event.dims, data)

    def _view(self, event: LayerReply, count: int) -> bytes:
        for _ in range(ATTEMPTS):
            data = self._link.transfer(
                Request.VIEW, count, event.elem_bytes, lambda at, n: struct.pack("<IH", at, n)
            )
            if zlib.crc32(data) == event.crc:
                return data
        raise BoardError(f"layer {event.layer} changes while the board sends it")

    def _ticks(self, number: int, run_s: float = 0.0) -> int:
        """Of ``number`` runs, one of which takes about ``run_s`` seconds. No request takes long: of
        a board that hangs it is known soon.
        """
        most = _MAX_RUNS if run_s <= 0 else min(max(int(_REQUEST_S / run_s), 1), _MAX_RUNS)
        ticks = 0
        while number > 0:
            runs = min(number, most)
            timeout = self._run_s + 20 * run_s * runs
            ticks += _unpacked(
                "<Q", self._ask(Request.BENCH, struct.pack("<HH", 0, runs), timeout)
            )[0]
            number -= runs
        return ticks

    def _number(self, run_s: float) -> int:
        """Runs that make a repeat long enough; counts of instructions need one."""
        if self._instruction_ns is not None or run_s <= 0:
            return 1
        return min(max(math.ceil(REPEAT_MS / 1e3 / run_s), 1), _MAX_RUNS)

    def _profile(self, repeat: int) -> list[tuple[int, ...]]:
        """Ticks of each layer in each of several runs."""
        most = _COUNTED_PROFILES if self._instruction_ns is not None else 11
        seen = [self._again(self._profile_once) for _ in range(min(repeat, most))]
        return list(zip(*seen, strict=True))

    def _stack(self) -> int | None:
        """Bytes of the stack that a run uses; None where the board does not tell."""
        self._ask(Request.STACK, b"\1")
        self._ticks(1)
        used, size = _unpacked("<II", self._ask(Request.STACK, b"\0"))
        return used if size else None

    def _profile_once(self) -> list[int]:
        ticks: list[int] = []
        while len(ticks) < self._ready.layers:
            data = self._ask(Request.PROFILE, struct.pack("<H", len(ticks)), self._run_s)
            if not data or len(data) % 4:
                raise BoardError("the board's profile makes no sense")
            ticks += struct.unpack(f"<{len(data) // 4}I", data)
        return ticks

    def _result(
        self, times: Sequence[float], number: int, layers: Sequence[tuple[int, ...]] = ()
    ) -> BenchResult:
        """Of a measurement that has broken off."""
        info = self._info
        macs = layer_macs(info)
        total = sum(count for count, _ in macs.values())
        integer = 2 * sum(n for n, whole in macs.values() if whole) > total
        cores = cores_in_use(self._board, (), 1, None)
        peak = {whole: peak_gops(cores, whole) for whole in (False, True)}
        hz = self._ready.ticks_hz if self._hello else 0
        return BenchResult(
            times_ms=tuple(times),
            number=number,
            runner=self._name,
            layers=tuple(
                LayerTime(
                    index,
                    info.layers[index].name,
                    1e3 * statistics.median(ticks) / hz,
                    macs[index][0],
                    macs[index][1],
                    peak[macs[index][1]],
                )
                for index, ticks in enumerate(layers)
            ),
            name=info.prefix,
            macs=total,
            integer=integer,
            peak_gops=peak[integer],
            emulated=self._instruction_ns is not None,
            complete=False,
            cost=self._cost(times, number, layers, hz),
        )

    def _cost(
        self,
        times: Sequence[float],
        number: int,
        layers: Sequence[tuple[int, ...]],
        hz: int,
    ) -> RunCost | None:
        """Under an emulator whose clock tells them, the instructions of a run and of its layers:
        exact where repeats are of one run, else the mean.
        """
        each = self._instruction_ns
        if each is None or not times:
            return None
        if number == 1:
            ticks = [round(ms * hz / 1e3) for ms in times]
            run = whole_instructions(ticks, 1e9 / hz, each)
        else:
            run = round(statistics.fmean(times) * 1e6 / each)
        found = (whole_instructions(layer, 1e9 / hz, each) for layer in layers)
        return RunCost(
            Counts.of_instructions(run),
            self._board.clusters[0].core,
            None,
            tuple(LayerCost(instructions, None) for instructions in found),
            caches=False,
        )


def _unpacked(form: str, data: bytes) -> tuple[int, ...]:
    """
    Raises:
        BoardError: it has another size.
    """
    try:
        return struct.unpack(form, data)
    except struct.error as error:
        raise BoardError(f"the board's reply makes no sense ({error})") from error


def _one_core(cores: Cores | None) -> None:
    if cores is not None:
        raise UsageError(f"--cores {cores}: a microcontroller has one core for a run")
