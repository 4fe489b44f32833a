"""Register tiles of 8-bit products on AArch64: which registers hold what, in execution order.

A tile is ``rows`` pixels x ``channels``; its packed pixels are [K/16][rows][16]. Three families:

- sdot (ARMv8.2 dot product): packed weights [K/4][channels][4]; an accumulator is four channels of
  a pixel, and a pixel's vector is used by element.
- smull, smlal2 and sadalp (any AArch64): packed weights [K/16][4][16]; an accumulator is one
  channel of a pixel, its lanes summed at the end. Two products share an int16: 2 * 128 * 128 would
  not fit one, so no two weights eight steps apart may both be -128 (``pairs_fit``).
- vmull, vmlal and vpadal (32-bit ARM): the same in half the registers.

Registers are named in full ("v11.4s") so that the template only prints them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aotgen.schedule.int8.neon.operands import LANES
from aotgen.schedule.intrinsics import S8_SDOT, S8_SMULL_SMLAL, S8_VMULL_VMLAL, Intrinsic

CHUNK = 16
"""Reduction steps that one load of a pixel serves."""

SUMS = 8
"""Places for the sums of a tile's pixels: no tile has more."""


@dataclass(frozen=True)
class Load:
    """One ld1 of neighbouring registers: their names and how far the pointer moves."""

    registers: str
    bytes: int


@dataclass(frozen=True)
class ProductGroup:
    """Weights loaded together and the instructions that use them, in order."""

    load: Load
    products: tuple[str, ...]


@dataclass(frozen=True)
class Product:
    """The instructions of sixteen products of a pixel and a channel, by their intrinsic record.

    Attributes:
        first, second: of the lower and the upper eight; the second adds to the first's int16.
        single: in place of ``second``, where each is widened by itself.
        add: to the sum of 32 bits.
    """

    first: str
    second: str
    single: str
    add: str

    @classmethod
    def of(cls, record: Intrinsic, product: int, pixel: int, weights: int, total: int) -> Product:
        """Of registers by number."""
        names = {"p": product, "v": pixel, "b": weights, "acc": total}
        for name in ("v", "b"):
            names |= {f"{name}_low": 2 * names[name], f"{name}_high": 2 * names[name] + 1}
        first, second, single, add = (
            text.format(**names) for text in (*record.asm[:2], record.asm_single, record.asm[2])
        )
        return cls(first, second, single, add)


@dataclass(frozen=True)
class Store:
    """One st1 of a pixel's bytes: register or lane, and what the pointer moves by, an immediate or
    the name of an operand.
    """

    registers: str
    step: str


def names(first: int, count: int, arrangement: str) -> str:
    """The list of ``count`` registers from number ``first`` on, in assembly text."""
    return ", ".join(f"v{first + i}.{arrangement}" for i in range(count))


def loads(first: int, count: int, arrangement: str = "16b") -> list[Load]:
    """ld1 of at most four registers each."""
    return [
        Load(names(first + at, n, arrangement), 16 * n)
        for at in range(0, count, 4)
        for n in [min(4, count - at)]
    ]


@dataclass(frozen=True)
class Tile:
    """A register tile of either AArch64 family.

    Attributes:
        rows, vectors: pixels, and vectors of four channels.
        columns: by vector of channels, the numbers of the accumulators of all rows.
    """

    rows: int
    vectors: int
    columns: tuple[tuple[int, ...], ...]

    @property
    def channels(self) -> int:
        return LANES * self.vectors

    @property
    def pixel_loads(self) -> list[Load]:
        return loads(0, self.rows)

    @property
    def results(self) -> list[int]:
        """Accumulators, pixel by pixel."""
        return [column[i] for i in range(self.rows) for column in self.columns]

    @property
    def halves(self) -> list[tuple[int, int | None]]:
        """Pairs of accumulators that become eight int16, the first in place."""
        return pairs(self.results)

    @property
    def words(self) -> list[tuple[int, int | None]]:
        """Pairs of those that become sixteen bytes."""
        return pairs([first for first, _ in self.halves])

    @property
    def stores(self) -> list[Store]:
        """A pixel's bytes by the largest pieces that lie in one register; the last one moves the
        pointer to the next pixel: operand ``step<n>`` is the distance of pixels less n bytes.
        """
        registers = [first for first, _ in self.words]
        found: list[Store] = []
        for row in range(self.rows):
            unit, end = row * self.vectors, (row + 1) * self.vectors
            done = 0
            while unit < end:
                size = next(n for n in (4, 2, 1) if unit % n == 0 and unit + n <= end)
                register = f"v{registers[unit // 4]}"
                lane = unit % 4 // size
                text = {4: f"{{{register}.16b}}", 2: f"{{{register}.d}}[{lane}]"}.get(
                    size, f"{{{register}.s}}[{lane}]"
                )
                unit += size
                step = f"%[step{done}]" if unit == end else f"#{4 * size}"
                found.append(Store(text, step))
                done += 4 * size
        return found

    @property
    def steps(self) -> list[int]:
        """The operands ``step<n>`` that the stores name."""
        used = {s.step for s in self.stores}
        return [n for n in (0, 4, 8) if f"%[step{n}]" in used]


def pairs(items: Sequence[int]) -> list[tuple[int, int | None]]:
    """Items two by two; the last one alone where their number is odd."""
    return [
        (items[i], items[i + 1] if i + 1 < len(items) else None) for i in range(0, len(items), 2)
    ]


@dataclass(frozen=True)
class SdotTile(Tile):
    """Pixels lie in v0 .., then the weights, accumulators pixel by pixel at the top."""

    @classmethod
    def of(cls, rows: int, vectors: int) -> SdotTile:
        first = 32 - rows * vectors
        columns = (tuple(first + i * vectors + j for i in range(rows)) for j in range(vectors))
        return cls(rows, vectors, tuple(columns))

    @staticmethod
    def fits(rows: int, vectors: int) -> bool:
        """Whether accumulators, pixels and two to four vectors of weights fit 32 registers."""
        return rows * vectors + rows + 4 <= 32

    @property
    def bias(self) -> str:
        return names(32 - self.rows * self.vectors, self.vectors, "4s")

    @property
    def copies(self) -> list[tuple[int, int]]:
        """(to, from): the bias of every other pixel."""
        return [(to, column[0]) for column in self.columns for to in column[1:]]

    def groups(self, steps: int) -> list[ProductGroup]:
        """Of ``steps`` quadruples of the reduction."""
        found = []
        total = steps * self.vectors
        for at in range(0, total, 4):
            count = min(4, total - at)
            products = []
            for u in range(count):
                k, j = divmod(at + u, self.vectors)
                products += [
                    S8_SDOT.asm[0].format(acc=acc, b=self.rows + u, v=i, lane=k)
                    for i, acc in enumerate(self.columns[j])
                ]
            load = Load(names(self.rows, count, "16b"), 16 * count)
            found.append(ProductGroup(load, tuple(products)))
        return found

    def instructions(self, depth: int) -> int:
        """Executed for one tile: the reduction loop and what surrounds it."""
        whole, rest = divmod(-(-depth // 4), 4)
        loop = 4 * self.rows * self.vectors + self.vectors + len(self.pixel_loads) + 2
        tail = (rest * self.rows * self.vectors + rest + 2) if rest else 0
        around = self.rows * self.vectors * 6 + len(self.stores) + 12
        return whole * loop + tail + around


@dataclass(frozen=True)
class SmlalTile(Tile):
    """Pixels in v0-v3, four channels' weights in v4-v7, products in v8-v15, accumulators above;
    ``sums`` by pixel and channel. The first of a pixel becomes its result.
    """

    sums: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, rows: int) -> SmlalTile:
        sums = tuple(tuple(16 + 4 * i + j for j in range(4)) for i in range(rows))
        return cls(rows, 1, (tuple(row[0] for row in sums),), sums)

    @property
    def weight_load(self) -> Load:
        return Load(names(4, 4, "16b"), 64)

    @property
    def product_groups(self) -> list[list[Product]]:
        """Products that are in registers together."""
        channels = 8 // self.rows if self.rows > 2 else 4
        return [
            [
                Product.of(S8_SMULL_SMLAL, 8 + n, i, 4 + j, self.sums[i][j])
                for n, (j, i) in enumerate(
                    (j, i) for j in range(at, at + channels) for i in range(self.rows)
                )
            ]
            for at in range(0, 4, channels)
        ]

    def instructions(self, depth: int) -> int:
        """Executed for one tile."""
        whole = depth // CHUNK + (depth % CHUNK > 8)
        tail = 8 * self.rows + 2 if 0 < depth % CHUNK <= 8 else 0
        return whole * (12 * self.rows + 4) + tail + 16 * self.rows + 12


@dataclass(frozen=True)
class VmlalTile(Tile):
    """32-bit ARM: pixels in q0 and q1, two channels' weights in q2 and q3, products in q4-q7; sums
    by pixel and channel above.
    """

    sums: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, rows: int) -> VmlalTile:
        sums = tuple(tuple(8 + 2 * j + i for j in range(4)) for i in range(rows))
        return cls(rows, 1, (tuple(row[0] for row in sums),), sums)

    @property
    def pixel_registers(self) -> str:
        return f"d0-d{2 * self.rows - 1}"

    @property
    def product_groups(self) -> list[list[Product]]:
        """Products of two channels, then of the other two."""
        return [
            [
                Product.of(S8_VMULL_VMLAL, 4 + n, i, 2 + j - at, self.sums[i][j])
                for n, (j, i) in enumerate((j, i) for j in (at, at + 1) for i in range(self.rows))
            ]
            for at in (0, 2)
        ]

    def instructions(self, depth: int) -> int:
        """Executed for one tile."""
        whole = depth // CHUNK + (depth % CHUNK > 8)
        tail = 8 * self.rows + 3 if 0 < depth % CHUNK <= 8 else 0
        return whole * (12 * self.rows + 5) + tail + 22 * self.rows + 20


def pairs_fit(packed: npt.NDArray[np.int8]) -> bool:
    """Whether no two weights that share an int16 are both -128; ``packed``: [..., 16] of one
    channel each.
    """
    both = (packed[..., :8] == -128) & (packed[..., 8:] == -128)
    return not both.any()
