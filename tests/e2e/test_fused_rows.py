"""Networks whose depthwise and 1x1 convolutions are streamed by rows: built, run, and the same
bytes by any number of threads.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import aotgen
from aotgen.schedule.conv import fuse_rows
from support import require_tool
from tests.e2e.layout_models import Builder
from tests.e2e.test_fuzz import check_built
from tests.e2e.threaded import check_threads, compile_shared

BOARDS = ("host", "host-scalar")


@pytest.fixture(autouse=True)
def always_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small maps are merged like large ones."""
    monkeypatch.setattr(fuse_rows, "_limit", lambda *_: 1e6)


def mobile_blocks() -> Builder:
    """Blocks of MobileNet v1 and v2, odd sizes, channels that are no whole vectors, a residual that
    is the block's input and one that the output overwrites, and squeeze-and-excitation between two
    convolutions.
    """
    b = Builder(6, (1, 3, 45, 39))
    x = b.same("Relu", b.conv("x", 20, 3, 2))
    x = b.same("Relu", b.conv(b.same("Relu", b.depthwise(x)), 24))
    y = b.same("HardSwish", b.conv(x, 50))
    y = b.same("Relu", b.depthwise(y, 5))
    x = b.same("Add", b.conv(y, 24), x)
    side = b.conv(x, 24)
    x = b.same("Add", b.conv(b.depthwise(x), 24), side)
    y = b.same("Relu", b.depthwise(b.same("Relu", b.conv(x, 40)), 3, 2))
    y = b.same("Mul", y, b.same("Sigmoid", b.conv(b.average(y), 40)))
    x = b.conv(y, 32)
    b.outputs = [x, b.average(x)]
    return b


@pytest.mark.parametrize("board", BOARDS)
def test_merged_networks(board: str, tmp_path: Path) -> None:
    require_tool("gcc")
    model = mobile_blocks().model()
    path = tmp_path / "net.onnx"
    path.write_bytes(model.proto.SerializeToString())
    project = aotgen.compile(path, board=board, output=tmp_path / "project", weights="bin")
    templates = [layer["template"] for layer in project.manifest["layers"]]
    assert templates.count("conv2d_fused_rows") == 4
    check_built(project, model)


@pytest.mark.parametrize("board", BOARDS)
def test_the_same_bytes_by_threads(board: str, tmp_path: Path) -> None:
    require_tool("gcc")
    model = mobile_blocks().model()
    project = check_threads(model.proto, model.feeds, tmp_path, board)
    shared = [layer["shared"] for layer in project.manifest["layers"]]
    assert any(shared)


def test_on_an_emulated_board(tmp_path: Path) -> None:
    """The same bytes by one to three threads; validate sees merged Groups by their outputs."""
    require_tool("cmake", "aarch64-linux-gnu-gcc", "qemu-aarch64")
    model = mobile_blocks().model()
    project = compile_shared(model.proto, tmp_path, "rpi4", threads=3, weights="asm")
    templates = [layer["template"] for layer in project.manifest["layers"]]
    assert templates.count("conv2d_fused_rows") == 4
    want = project.run(model.feeds, runner="qemu")
    for threads in (2, 3):
        got = project.run(model.feeds, runner="qemu", threads=threads, cores="all")
        assert all(got[name].tobytes() == want[name].tobytes() for name in want)
    report = project.validate(model.feeds, runner="qemu", per_layer=True)
    assert report.ok, report.first_bad_layer
