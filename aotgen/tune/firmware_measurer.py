"""Measures candidates on microcontrollers, real ones and emulated ones, over a serial line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from aotgen.runner.qemu_system import INSTRUCTION_NS
from aotgen.runner.serial import QemuBoard, SerialBoard, require_flash
from aotgen.target.board import Board
from aotgen.tune.builder import Built
from aotgen.tune.bundle import Bundle
from aotgen.tune.device import CaseResult, DeviceOptions
from aotgen.tune.firmware import FirmwareBuilder
from aotgen.tune.measure import BundleMeasurer, MeasureOptions
from aotgen.tune.outcome import Kind
from aotgen.tune.serial_device import SerialDevice


class FirmwareMeasurer(BundleMeasurer):
    """Measures on one microcontroller."""

    def __init__(
        self,
        board: Board,
        place: QemuBoard | SerialBoard,
        options: MeasureOptions | None = None,
        builder: FirmwareBuilder | None = None,
    ) -> None:
        """
        Args:
            board: that candidates are built for.
            place: where they run; closed with the measurer.
            options: None are the defaults. Of them ``rotate_bytes``, ``memory_bytes``, ``cpu``,
                ``governor``, ``emulated`` and ``sysfs_root`` say nothing here: constants lie in
                flash, and there is no system.
            builder: None is one with the board's own compiler.

        Raises:
            UsageError: an option makes no sense; or no program can be linked for the board, or
                gets there.
            ToolchainError: there is no compiler.
        """
        emulated = isinstance(place, QemuBoard)
        if not emulated:
            require_flash(board)
        cores = os.cpu_count() or 1
        super().__init__(board, options, overlaps=not emulated or cores > 1)
        self._place = place
        self._kind: Kind = "modelled" if emulated else "measured"
        self._builder = builder or FirmwareBuilder(board, self.options.compiler, cores)
        self._device = SerialDevice(
            board, place, _device_options(self.options), INSTRUCTION_NS if emulated else None
        )

    @property
    def kind(self) -> Kind:
        return self._kind

    @property
    def warnings(self) -> list[str]:
        return []

    def close(self) -> None:
        super().close()
        self._place.close()

    def _programs(self, bundle: Bundle, folder: Path) -> tuple[Built, ...]:
        return self._builder.build_images(bundle, folder)

    def _execute(
        self, bundle: Bundle, built: Built, abandon: Mapping[int, float]
    ) -> Iterator[tuple[int, CaseResult]]:
        try:
            yield from self._device.run(built, abandon)
        finally:
            if built.program is not None:
                for path in built.program.parent.glob(f"{built.program.stem}.*"):
                    path.unlink()


def _device_options(options: MeasureOptions) -> DeviceOptions:
    return DeviceOptions(
        number=options.number,
        repeat=options.repeat,
        min_repeat_s=options.min_repeat_ms / 1000,
        timeout_s=options.timeout,
        tolerance=options.tolerance,
        patience_s=options.patience,
    )
