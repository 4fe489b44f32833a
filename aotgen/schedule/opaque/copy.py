"""Layout copies, border fills and running sums: kernels that move memory from view to view."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aotgen.codegen import literals
from aotgen.ir.graph import Value
from aotgen.ir.types import DType
from aotgen.schedule.base import Arg, Kernel, View
from aotgen.target.target import Target
from aotgen.te.c_printer import CPrinter
from aotgen.te.cl_printer import ClPrinter
from aotgen.te.compute import Scan
from aotgen.te.emit import Block, render_block
from aotgen.te.expr import const

NAMES = ("i", "j", "k", "l", "m", "n", "o", "p")
"""Loop names by axis."""

TILE = 16
"""Elements along each side of a transpose's tiles: a tile's lines of both sides stay in L1."""


@dataclass(frozen=True)
class _Axis:
    name: str
    extent: int
    src: int
    dst: int
    lo: int = 0


def _offset(parts: list[tuple[str, int]], const_part: int = 0) -> str:
    """C text of ``sum(name * stride) + const``."""
    text = ""
    for name, stride in parts:
        if stride == 0:
            continue
        term = name if abs(stride) == 1 else f"{name} * {abs(stride)}"
        if text:
            text += f" {'-' if stride < 0 else '+'} {term}"
        else:
            text = term if stride > 0 else f"-{term}"
    if const_part or not text:
        sign = "-" if const_part < 0 else "+"
        text = f"{text} {sign} {abs(const_part)}" if text else str(const_part)
    return text


def _merged(axes: list[_Axis]) -> list[_Axis]:
    """Axes of extent 1 dropped, the others by falling stride of the target, contiguous neighbours
    joined.
    """
    kept = sorted((a for a in axes if a.extent > 1), key=lambda a: (-abs(a.dst), -abs(a.src)))
    out: list[_Axis] = []
    for axis in kept:
        if out:
            o = out[-1]
            if o.src == axis.src * axis.extent and o.dst == axis.dst * axis.extent:
                out[-1] = _Axis(axis.name, o.extent * axis.extent, axis.src, axis.dst)
                continue
        out.append(axis)
    return [
        _Axis(NAMES[k] if k < 8 else f"i{k}", a.extent, a.src, a.dst) for k, a in enumerate(out)
    ]


def copy_nest(
    source: View,
    target_view: View,
    dtype: DType,
    target: Target,
    value: Value | None = None,
    output: Value | None = None,
) -> Kernel:
    """Copy a tensor from one view to another of the same shape, element type ``dtype``. A view in
    blocks of channels cuts the last axis of both in two.

    Where the inner axes of both sides differ (a transpose) the two axes are walked in tiles.
    """
    if source.shape != target_view.shape:
        raise ValueError("a copy needs views of the same shape")
    block = source.block or target_view.block
    if block:
        source, target_view = source.split_channels(block), target_view.split_channels(block)
    axes = _merged(
        [
            _Axis("", n, s, d)
            for n, s, d in zip(source.shape, source.strides, target_view.strides, strict=True)
        ]
    )
    shape = "x".join(map(str, source.shape)) or "scalar"
    args = (
        Arg("x", f"const {dtype.c} *", value=value),
        Arg("y", f"{dtype.c} *", value=output, is_output=True),
    )
    purpose = f"Layout copy of {shape} {dtype.value}."
    if target.device == "gpu":
        return _cl_items(f"copy_{dtype.value}", purpose, dtype, axes, True, "")
    inner_src = min((abs(a.src) for a in axes if a.src), default=0)
    transposed = len(axes) > 1 and abs(axes[-1].src) > inner_src
    if transposed:
        return _c_function(f"transpose_{dtype.value}", purpose, args, *_transpose_loops(axes))
    return _c_function(f"copy_{dtype.value}", purpose, args, *_copy_loops(axes, dtype, target))


def _loops(axes: list[_Axis], body: Block, rows: bool = True) -> Block:
    """Loops around ``body``; the first one over [r0, r1)."""
    for position in range(len(axes) - 1, -1, -1):
        axis = axes[position]
        lo, hi = (
            ("r0", "r1") if rows and position == 0 else (str(axis.lo), str(axis.lo + axis.extent))
        )
        body = [
            f"for (int32_t {axis.name} = {lo}; {axis.name} < {hi}; {axis.name}++) {{",
            body,
            "}",
        ]
    return body


def _copy_loops(axes: list[_Axis], dtype: DType, target: Target) -> tuple[Block, int]:
    """Plain loops; contiguous inner runs as memcpy."""
    if not axes:
        return ["(void)r0;", "(void)r1;", "y[0] = x[0];"], 1
    inner = axes[-1]
    contiguous = inner.src == inner.dst == 1
    if contiguous and len(axes) == 1:
        return ["memcpy(&y[r0], &x[r0], (size_t)(r1 - r0) * sizeof *y);"], inner.extent
    outer = axes[:-1] if contiguous else axes
    src = _offset([(a.name, a.src) for a in outer])
    dst = _offset([(a.name, a.dst) for a in outer])
    if not contiguous:
        return _loops(outer, [f"y[{dst}] = x[{src}];"]), outer[0].extent
    if inner.extent >= 8:
        body: Block = [f"memcpy(&y[{dst}], &x[{src}], {inner.extent} * sizeof *y);"]
    else:
        n = inner.name
        both = f"y[{_offset([(dst, 1), (n, 1)])}] = x[{_offset([(src, 1), (n, 1)])}];"
        body = [f"for (int32_t {n} = 0; {n} < {inner.extent}; {n}++) {both}"]
    return _loops(outer, body), outer[0].extent


def _transpose_loops(axes: list[_Axis]) -> tuple[Block, int]:
    """Tiles over the inner axes of source and target: rows are those of the outermost axis that is
    left, or tiles.
    """
    inner = axes[-1]
    across = min(axes[:-1], key=lambda a: (abs(a.src) if a.src else math.inf, -a.extent))
    outer = [a for a in axes if a is not inner and a is not across]
    src = _offset([(a.name, a.src) for a in axes])
    dst = _offset([(a.name, a.dst) for a in axes])
    a, b = across.name, inner.name
    end_a = f"{a}{a} + {TILE} < {across.extent} ? {a}{a} + {TILE} : {across.extent}"
    end_b = f"{b}{b} + {TILE} < {inner.extent} ? {b}{b} + {TILE} : {inner.extent}"
    tiles_a = math.ceil(across.extent / TILE)
    body: Block = [
        f"const int32_t {a}_end = {end_a};",
        f"for (int32_t {b}{b} = 0; {b}{b} < {inner.extent}; {b}{b} += {TILE}) {{",
        [
            f"const int32_t {b}_end = {end_b};",
            f"for (int32_t {a} = {a}{a}; {a} < {a}_end; {a}++) {{",
            [
                f"for (int32_t {b} = {b}{b}; {b} < {b}_end; {b}++) {{",
                [f"y[{dst}] = x[{src}];"],
                "}",
            ],
            "}",
        ],
        "}",
    ]
    if outer:
        tiled: Block = [
            f"for (int32_t {a}{a} = 0; {a}{a} < {across.extent}; {a}{a} += {TILE}) {{",
            body,
            "}",
        ]
        return _loops(outer, tiled), outer[0].extent
    first: Block = [
        f"for (int32_t {a}{a} = r0 * {TILE}; {a}{a} < r1 * {TILE}; {a}{a} += {TILE}) {{",
        body,
        "}",
    ]
    return first, tiles_a


def _c_function(name: str, purpose: str, args: tuple[Arg, ...], body: Block, rows: int) -> Kernel:
    parameters = [f"{a.ctype}restrict {a.name}" for a in args] + ["int32_t r0", "int32_t r1"]
    function: Block = [
        f"/* {purpose} */",
        f"static void @KERNEL@({', '.join(parameters)}) {{",
        body,
        "}",
    ]
    text = render_block(function) + "\n"
    includes = frozenset(["string.h"]) if "memcpy" in text else frozenset[str]()
    return Kernel(name, text, args, rows, includes=includes)


def _cl_items(
    name: str, purpose: str, dtype: DType, axes: list[_Axis], reads: bool, fill: str
) -> Kernel:
    """One work item an element; the innermost axis is dimension 0, all others together are
    dimension 1.
    """
    ctype = ClPrinter().ctype(dtype)
    lines: Block = []
    parameters = [f"__global const {ctype} *x", "int x_off"] if reads else []
    parameters += [f"__global {ctype} *y", "int y_off"]
    inner = list(reversed(axes))
    size: tuple[int, ...] = (1,)
    if inner:
        lines.append(f"const int {inner[0].name} = (int)get_global_id(0) + {inner[0].lo};")
        size = (inner[0].extent,)
    if len(inner) > 1:
        lines.append("int item = (int)get_global_id(1);")
        for axis in inner[1:]:
            lines.append(f"const int {axis.name} = item % {axis.extent} + {axis.lo};")
            lines.append(f"item /= {axis.extent};")
        size = (size[0], math.prod(a.extent for a in inner[1:]))
    src = _offset([("x_off", 1), *((a.name, a.src) for a in axes)])
    dst = _offset([("y_off", 1), *((a.name, a.dst) for a in axes)])
    lines.append(f"y[{dst}] = {f'x[{src}]' if reads else fill};")
    function: Block = [
        f"/* {purpose} */",
        f"__kernel void @KERNEL@({', '.join(parameters)}) {{",
        lines,
        "}",
    ]
    args = (Arg("x", f"const {dtype.c} *"),) if reads else ()
    args = (*args, Arg("y", f"{dtype.c} *", is_output=True))
    return Kernel(name, render_block(function) + "\n", args, 1, global_size=size)


def _slabs(view: View) -> list[list[_Axis]]:
    """Boxes that cover a view's border once: along each axis the part before and after, inside in
    earlier axes.
    """
    boxes: list[list[_Axis]] = []
    for axis in range(len(view.shape)):
        for lo, extent in (
            (-view.border_of(axis)[0], view.border_of(axis)[0]),
            (view.shape[axis], view.border_of(axis)[1]),
        ):
            if extent == 0:
                continue
            box: list[_Axis] = []
            for other, n in enumerate(view.shape):
                before, after = view.border_of(other)
                stride = view.strides[other]
                if other < axis:
                    box.append(_Axis(NAMES[other], n, 0, stride))
                elif other == axis:
                    box.append(_Axis(NAMES[other], extent, 0, stride, lo))
                else:
                    box.append(_Axis(NAMES[other], n + before + after, 0, stride, -before))
            boxes.append(box)
    return boxes


def border_fill(view: View, target: Target, value: float = 0.0) -> Kernel:
    """Write ``value`` to all of a view's border. The pointer is that of logical element 0."""
    if view.layout == "nchwc":  # block by block
        last = len(view.shape)
        view = view.as_strided.permuted((0, last - 1, *range(1, last - 1), last))
    text = CPrinter().literal(const(value, view.dtype))
    shape = "x".join(map(str, view.shape))
    purpose = f"Writes {literals.f32(value)} to the border of {shape} {view.dtype.value}."
    if target.device == "gpu":
        whole = [
            _Axis(NAMES[k], n + sum(view.border_of(k)), 0, view.strides[k], -view.border_of(k)[0])
            for k, n in enumerate(view.shape)
        ]
        kernel = _cl_items(f"border_{view.dtype.value}", purpose, view.dtype, whole, False, text)
        inside = " && ".join(
            f"{a.name} >= 0 && {a.name} < {n}" for a, n in zip(whole, view.shape, strict=True)
        )
        text = kernel.body.replace("    y[", f"    if ({inside}) return;\n    y[")
        return Kernel(kernel.name, text, kernel.args, 1, global_size=kernel.global_size)
    body: Block = ["(void)r0;", "(void)r1;"]
    for box in _slabs(view):
        loops, const_part = _joined(box)
        offset = _offset([(a.name, a.dst) for a in loops], const_part)
        body += _loops(loops, [f"y[{offset}] = {text};"], rows=False)
    args = (Arg("y", f"{view.dtype.c} *", is_output=True),)
    return _c_function(f"border_{view.dtype.value}", purpose, args, body, 1)


def _joined(box: list[_Axis]) -> tuple[list[_Axis], int]:
    """A box with contiguous axes joined, counted from 0, and the offset of its first element."""
    start = sum(a.lo * a.dst for a in box)
    out: list[_Axis] = []
    for axis in box:
        if axis.extent == 1:
            continue
        if out and out[-1].dst == axis.dst * axis.extent:
            out[-1] = _Axis(axis.name, out[-1].extent * axis.extent, 0, axis.dst)
        else:
            out.append(_Axis(axis.name, axis.extent, 0, axis.dst))
    return out, start


def scan_kernel(
    scan: Scan, source: Value, output: Value, source_view: View, view: View, target: Target
) -> Kernel:
    """Running sums or products along one axis; all other axes are loops around it."""
    printer = ClPrinter() if target.device == "gpu" else CPrinter()
    dtype = output.dtype
    axes = [
        _Axis(NAMES[a], n, source_view.strides[a], view.strides[a])
        for a, n in enumerate(view.shape)
    ]
    along = axes[scan.axis]
    outer = [a for a in axes if a is not along and a.extent > 1]
    src = _offset([(a.name, a.src) for a in (*outer, along)])
    dst = _offset([(a.name, a.dst) for a in (*outer, along)])
    int_type, ctype = printer.int_type, printer.ctype(dtype)
    start = printer.literal(const(1 if scan.product else 0, dtype))
    join = "mul" if scan.product else "add"
    update = f"total = {printer.call(join, dtype, dtype, ['total', f'x[{src}]'])};"
    give = f"y[{dst}] = total;"
    n = along.name
    down = f"for ({int_type} {n} = {along.extent - 1}; {n} >= 0; {n}--) {{"
    up = f"for ({int_type} {n} = 0; {n} < {along.extent}; {n}++) {{"
    body: Block = [
        f"{ctype} total = {start};",
        down if scan.reverse else up,
        [give, update] if scan.exclusive else [update, give],
        "}",
    ]
    shape = "x".join(map(str, view.shape))
    kind = "cumprod" if scan.product else "cumsum"
    joined = "product" if scan.product else "sum"
    purpose = f"Running {joined} along axis {scan.axis} of {shape} {dtype.value}."
    args = (
        Arg("x", f"const {dtype.c} *", value=source),
        Arg("y", f"{dtype.c} *", value=output, is_output=True),
    )
    if target.device == "gpu":
        return _cl_scan(f"{kind}_{dtype.value}", purpose, ctype, outer, body, args)
    if not outer:
        return _c_function(
            f"{kind}_{dtype.value}", purpose, args, ["(void)r0;", "(void)r1;", *body], 1
        )
    return _c_function(f"{kind}_{dtype.value}", purpose, args, _loops(outer, body), outer[0].extent)


def _cl_scan(
    name: str, purpose: str, ctype: str, outer: list[_Axis], body: Block, args: tuple[Arg, ...]
) -> Kernel:
    lines: Block = [
        f"__global const {ctype} *x = x_base + x_off;",
        f"__global {ctype} *y = y_base + y_off;",
        "int item = (int)get_global_id(0);",
    ]
    for axis in reversed(outer):
        lines += [f"const int {axis.name} = item % {axis.extent};", f"item /= {axis.extent};"]
    parameters = f"__global const {ctype} *x_base, int x_off, __global {ctype} *y_base, int y_off"
    function: Block = [
        f"/* {purpose} */",
        f"__kernel void @KERNEL@({parameters}) {{",
        [*lines, *body],
        "}",
    ]
    size = (math.prod(a.extent for a in outer),)
    return Kernel(name, render_block(function) + "\n", args, 1, global_size=size)
