"""qconv and qmatmul as products of matrices: patches in scratch, then a register tile over pairs of
reduction steps.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node, Value
from aotgen.ir.types import DType
from aotgen.schedule.base import Arg, Config, Kernel, Knob, PackedConst, View, Views
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.dense.problem import affine
from aotgen.schedule.dense.tiles import core_model, padded
from aotgen.schedule.int8.integer_features import (
    BLOCK_BYTES,
    check_block,
    check_integer_tile,
    integer_features,
)
from aotgen.schedule.int8.quantized import (
    ConstantWeights,
    as_conv,
    channel_args,
    group_count,
    is_flat,
    is_wide,
    operands_of,
    reduction,
    requant_text,
    requant_words,
    tiled_pixels,
    title,
    why_not,
)
from aotgen.schedule.intrinsics import I16_PAIRS
from aotgen.target.target import Target

_BLOCK_BYTES = 24 << 10
"""Patches that are in scratch together: they stay in L1 beside a panel of weights."""

_BARE_BLOCK_BYTES = (512, 1024, 2048, 4096)
"""The same on a microcontroller, which has no caches, and little RAM."""

_CHUNK_PAIRS = 255
"""Pairs of products of 16 and 8 bits that int32 certainly holds; 64-bit sums take them in so many
at a time.
"""


class QuantizedDense(ConstantWeights):
    """Convolutions and matrix products of integers."""

    name = "quantized_dense"

    def applies(self, group: Group, target: Target) -> str | None:
        reason = why_not(group, target)
        if reason is not None:
            return reason
        node = group.nodes[0]
        if node.op == "qconv" and 1 < node.attrs["groups"] == node.output.shape[-1]:
            return "a depthwise convolution has no product of matrices"
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return (
            Knob("pixels", "ordinal", (1, 2, 3, 4, 5, 6, 7, 8), "pixels"),
            Knob("vectors", "ordinal", (1, 2, 3, 4), "vectors"),
            Knob(
                "block_bytes",
                "ordinal",
                _block_bytes(target),
                "bytes of packed patches",
            ),
        )

    def default(self, group: Group, target: Target) -> Config:
        """Accumulators fill the registers; pixels divide a row where they can."""
        pixels, vectors = tile_of(target, tiled_pixels(group.nodes[0]), group.output.shape[-1])
        block = _BARE_BLOCK_BYTES[1] if target.bare else _BLOCK_BYTES
        return Config.of(pixels=pixels, vectors=vectors, block_bytes=block)

    def check(self, group: Group, target: Target, config: Config) -> None:
        pixels, vectors = config.int("pixels"), config.int("vectors")
        check_integer_tile(group, target, pixels, vectors, live_registers(pixels, vectors))
        check_block(target, config)

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        node = group.nodes[0]
        pixels, vectors = config.int("pixels"), config.int("vectors")
        groups = group_count(node)
        rows = tiled_pixels(node)
        panels = -(-(node.output.shape[-1] // groups) // (vectors * target.vl)) * groups
        maps = math.prod(node.output.shape[:-1]) / rows
        pairs = maps * -(-rows // pixels) * panels * reduction(node) / 2
        return integer_features(
            group,
            target,
            config,
            live=live_registers(pixels, vectors),
            cycles=pairs * tile_step(pixels, vectors, target),
            size=2,
        )

    def products(self, target: Target) -> float:
        return 1.0

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        x, y = views[node.input(0)], views[group.output]
        zero = node.optional(3)
        runtime = zero if zero is not None and not zero.is_const else None
        operands = operands_of(node, fold=runtime is None)
        groups = group_count(node)
        products = operands.weights.shape[1]
        depth = products + products % 2
        outputs = len(operands.weights) // groups
        pixels, vectors = config.int("pixels"), config.int("vectors")
        vl = target.vl
        room = int(config.get("block_bytes", _BLOCK_BYTES))
        context = _geometry(node, x, y, depth, pixels, room)
        total = -(-outputs // vl)
        full = total // vectors * vectors
        last = outputs - (total - 1) * vl
        wide = padded(outputs, vl)
        if full:
            whole = full < total or last == vl
            end, step = full * vl, vectors * vl
            lanes = "VL" if whole else f"c == {end - step} ? {last} : VL"
            context["panels"] = {"end": end, "step": step, "lanes": lanes, "vectors": vectors}
        else:
            context["panels"] = None
        rest = total - full
        context["rest"] = {"start": full * vl, "vectors": rest, "lanes": last} if rest else None
        widths = sorted({vectors} if full else set()) + ([rest] if rest else [])
        weights = _pack(operands.weights, groups, outputs, vectors, vl)
        args = [Arg("x", f"const {x.dtype.c} *", value=node.input(0))]
        if runtime is not None:
            args.append(Arg("x_zero", f"const {runtime.dtype.c} *", value=runtime))
        source = node.input(1)
        args.append(Arg("w", "const int8_t *", const=PackedConst("w", weights, source)))
        present = channel_args(node, operands, groups, wide)
        args += present
        block = int(context["block"])
        args.append(Arg("a", "int16_t *", scratch_bytes=block * depth * 2))
        if operands.share is not None:
            args.append(Arg("sums", "int32_t *", scratch_bytes=block * 4))
        args.append(Arg("y", f"{y.dtype.c} *", value=group.output, is_output=True))
        if groups > 1:
            steps = {"x": node.input(0).shape[-1] // groups, "w": wide * depth, "y": outputs}
            steps.update({a.name: wide for a in present})
            _loop_groups(context, groups, steps, {a.name: a.ctype for a in args})
        moved = set(context["moved"])
        names = {a.name: f"{a.name}_" if a.name in moved else a.name for a in args}
        parameters = [f"{a.ctype}restrict {names[a.name]}" for a in args]
        tile_params = "".join(f", {a.ctype}{a.name}" for a in present)
        if operands.share is not None:
            tile_params += ", const int32_t *sums"
        text = render(
            "kernels/quantized_dense.c.j2",
            **context,
            dot=I16_PAIRS,
            title=title(group),
            params=", ".join([*parameters, "int32_t r0", "int32_t r1"]),
            tile_params=tile_params,
            per_channel=[a.name for a in present],
            bias=operands.bias is not None,
            share=operands.share is not None,
            requant=requant_text(node),
            wide=is_wide(node),
            chunk=_CHUNK_PAIRS,
            xtype=x.dtype.c,
            ytype=y.dtype.c,
            bits=y.dtype.size * 8,
            zero_arg=", zero" if runtime is not None else "",
            vector_widen=_widening(x.dtype, runtime),
            pad=operands.pad,
            depth=depth,
            reduction=products,
            pixels=pixels,
            widths=widths,
        )
        name = f"{node.op}_{x.dtype.value}_{pixels}x{vectors}"
        return Kernel(name, text, tuple(args), int(context["units"]), requant_words(node))


def _block_bytes(target: Target) -> tuple[int, ...]:
    if target.bare:
        return _BARE_BLOCK_BYTES
    return tuple(sorted((_BLOCK_BYTES, *BLOCK_BYTES[1:])))


def tile_of(target: Target, rows: int, channels: int) -> tuple[int, int]:
    """(pixels, vectors) of a tile for ``rows`` pixels of ``channels`` that wastes least."""
    vectors_in_all = -(-channels // target.vl)
    room = {"avx512": 24, "neon": 18, "scalar": 8, "mve": 5}.get(target.isa, 8)
    best, found = math.inf, (1, 1)
    for vectors in (1, 2, 3, 4):
        pixels = min(8, room // vectors, rows)
        if vectors > vectors_in_all:
            continue
        for count in range(max(1, pixels - 3), pixels + 1):
            if live_registers(count, vectors) > target.vector_registers:
                continue
            # Loads and broadcasts an accumulator, times what is computed in vain.
            work = (count * vectors + vectors + count) / (count * vectors)
            waste = -(-rows // count) * count / rows
            waste *= -(-vectors_in_all // vectors) * vectors / vectors_in_all
            if work * waste < best:
                best, found = work * waste, (count, vectors)
    return found


def live_registers(pixels: int, vectors: int) -> int:
    """Vector registers of a tile: accumulators, a vector of weights each, a pixel."""
    return pixels * vectors + vectors + 1


def tile_step(pixels: int, vectors: int, target: Target) -> float:
    """Cycles of a step of two products: a multiply-add each, loads, broadcasts."""
    core = core_model(target)
    sums = pixels * vectors
    return max((2 * sums + pixels + vectors) / core.fma, core.latency)


def _widening(dtype: DType, runtime: Value | None) -> str:
    """The word that loads pairs of x; empty where there is none."""
    if runtime is not None:
        return ""
    return {DType.I8: "s8", DType.U8: "u8"}.get(dtype, "")


def _geometry(node: Node, x: View, y: View, depth: int, pixels: int, room: int) -> dict[str, Any]:
    """Loops and offsets of the template: how pixels are walked and patches are read, ``room`` bytes
    of them at a time.
    """
    block = max(1, room // (2 * depth * pixels)) * pixels
    if is_flat(node, x, y):
        rows = math.prod(x.shape[:-1])
        block = min(block, padded(rows, pixels))
        return {
            "flat": True, "rows": None, "rows_end": [], "taps": [], "merged": None, "fills": False,
            "conditions": "", "tap_row": "", "tap_offset": "", "run": x.shape[-1],
            "channels": x.shape[-1], "x_pixel": x.row_stride, "y_pixel": y.row_stride,
            "block": block, "width": rows, "units": rows, "moved": [],
        }  # fmt: skip
    shape = ConvShape.of(as_conv(node))
    xs, ys = shape.spatial_strides(x), shape.spatial_strides(y)
    per_group = shape.channels // shape.groups
    merges = shape.dilation[2] == 1 and xs[2] == per_group and shape.groups == 1
    taps: list[dict[str, Any]] = []
    conditions: list[str] = []
    offsets, places = "", []
    cells = 1 if merges else shape.kernel[2]
    for i in range(3 - shape.axes, 2 if merges else 3):
        name, kernel = "dhw"[i], shape.kernel[i]
        last = (shape.out[i] - 1) * shape.stride[i] + (kernel - 1) * shape.dilation[i]
        position = affine(
            (f"o{name}", shape.stride[i]),
            (f"k{name}", shape.dilation[i] if kernel > 1 else 0),
            offset=-shape.begin[i],
        )
        taps.append({"name": name, "extent": kernel, "position": position})
        if shape.begin[i]:
            conditions.append(f"i{name} >= 0")
        if last - shape.begin[i] >= shape.size[i]:
            conditions.append(f"i{name} < {shape.size[i]}")
        offsets += f"i{name} * {xs[i]} + "
        if kernel > 1:
            inner = math.prod(shape.kernel[i + 1 : 2]) * (cells if i < 2 else 1)
            places.append((f"k{name}", inner))
    run = per_group * (shape.kernel[2] if merges else 1)
    last = (shape.out[2] - 1) * shape.stride[2] + shape.kernel[2] - 1 - shape.begin[2]
    padded_w = merges and (shape.begin[2] > 0 or last >= shape.size[2])
    merged = None
    if merges:
        merged = {
            "position": affine(("ow", shape.stride[2]), offset=-shape.begin[2]),
            "extent": shape.kernel[2],
            "size": shape.size[2],
            "padded": padded_w,
        }
    depth_rows = shape.out[0] * shape.out[1]
    lines, x_offset, y_offset = [], [], []
    if shape.batch > 1:
        lines.append(f"const int32_t n = r / {depth_rows};")
        x_offset, y_offset = [("n", x.strides[0])], [("n", y.strides[0])]
    if shape.axes > 2:
        lines.append(f"const int32_t od = r / {shape.out[1]} % {shape.out[0]};")
        y_offset.append(("od", ys[0]))
    if shape.axes > 1:
        plain = shape.batch == 1 and shape.axes == 2
        lines.append(f"const int32_t oh = r{'' if plain else f' % {shape.out[1]}'};")
        y_offset.append(("oh", ys[1]))
    for ctype, name, offset in (
        (f"const {x.dtype.c} *", "x", x_offset),
        (f"{y.dtype.c} *", "y", y_offset),
    ):
        lines.append(f"{ctype}restrict {name} = {affine((f'{name}_', 1), *offset)};")
    return {
        "flat": False, "rows": lines, "rows_end": [], "taps": taps, "merged": merged,
        "fills": bool(conditions) or padded_w, "conditions": " && ".join(conditions),
        "tap_row": affine(*((k, n * run) for k, n in places)) if places else "",
        "tap_offset": offsets, "run": run, "channels": per_group,
        "x_pixel": xs[2], "y_pixel": ys[2], "block": min(block, padded(shape.out[2], pixels)),
        "width": shape.out[2], "units": shape.batch * depth_rows, "moved": ["x", "y"],
    }  # fmt: skip


def _loop_groups(
    context: dict[str, Any], groups: int, steps: dict[str, int], types: dict[str, str]
) -> None:
    """Put a loop over groups inside the rows; every operand moves on by its step."""
    lines: list[str] = []
    for line in context["rows"]:
        for name in ("x", "y"):
            line = line.replace(f"restrict {name} =", f"restrict {name}_row =")
        lines.append(line)
    lines.append(f"for (int32_t g = 0; g < {groups}; g++) {{")
    for name, step in steps.items():
        if name in ("x", "y"):
            declared = next(part for part in lines if f" {name}_row =" in part)
            ctype = declared.split("restrict")[0]
            lines.append(f"{ctype}{name} = {name}_row + g * {step};")
        else:
            lines.append(f"{types[name]}{name} = {name}_ + g * {step};")
    context["rows"], context["rows_end"] = lines, ["}"]
    context["moved"] = list(steps)


def _pack(
    weights: npt.NDArray[np.int8], groups: int, outputs: int, vectors: int, vl: int
) -> npt.NDArray[np.int8]:
    """[group][panel][pair][channels of the panel][2], flat."""
    parts: list[npt.NDArray[np.int8]] = []
    for group in range(groups):
        block = weights[group * outputs : (group + 1) * outputs]
        wide = np.zeros((padded(outputs, vl), block.shape[1]), np.int8)
        wide[:outputs] = block
        total = len(wide) // vl
        full = total // vectors * vectors
        cuts = [*range(0, full, vectors), *([full] if full < total else []), total]
        for first, end in itertools.pairwise(cuts):
            parts.append(I16_PAIRS.pack(wide[first * vl : end * vl]).reshape(-1))
    return np.concatenate(parts)
