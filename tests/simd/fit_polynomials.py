"""Prints the coefficients in templates/simd/math.h.j2: minimax fits, rounded to float one by one.

A tool, not a test (needs mpmath; takes two minutes). Lawson's reweighted least squares on Chebyshev
nodes approaches the minimax polynomial; the lowest free coefficient is rounded to float and held,
and the rest is fitted again, so that later coefficients make up for the rounding of earlier ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from mpmath import mp, mpf

Function = Callable[[mpf], mpf]
mp.prec = 150


def to_float(x: mpf) -> mpf:
    return mpf(struct.unpack("f", struct.pack("f", float(x)))[0])


def literal(x: mpf) -> str:
    """A C99 hexadecimal float literal."""
    mantissa, exponent = float(x).hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{int(exponent)}f"


def lawson(
    nodes: list[mpf], values: list[mpf], weights: list[mpf], powers: list[int], rounds: int
) -> list[mpf]:
    """Coefficients of x^k, k in powers, minimising the largest weight * |value - polynomial|."""
    scale = max(abs(x) for x in nodes)
    rows = [[(x / scale) ** k for k in powers] for x in nodes]
    share = [mpf(1) / len(nodes)] * len(nodes)
    size = len(powers)
    solution = mp.matrix(size, 1)
    for _ in range(rounds):
        normal, right = mp.matrix(size, size), mp.matrix(size, 1)
        for row, value, weight, s in zip(rows, values, weights, share, strict=True):
            w = s * weight**2
            for j in range(size):
                right[j] += w * row[j] * value
                for k in range(size):
                    normal[j, k] += w * row[j] * row[k]
        solution = mp.lu_solve(normal, right)
        errors = [
            abs(weight * (value - sum(solution[j] * row[j] for j in range(size))))
            for row, value, weight in zip(rows, values, weights, strict=True)
        ]
        total = sum(s * e for s, e in zip(share, errors, strict=True))
        share = [s * e / total for s, e in zip(share, errors, strict=True)]
    return [solution[j] / scale**k for j, k in enumerate(powers)]


def fit(name: str, f: Function, low: mpf, high: mpf, degree: int, weight: Function) -> None:
    """Print a polynomial p of `degree` near f on [low, high], least in max |weight * (f - p)|."""
    count = 12 * (degree + 1)
    middle, radius = (low + high) / 2, (high - low) / 2
    nodes = [middle + radius * mp.cos((2 * i + 1) * mp.pi / (2 * count)) for i in range(count)]
    values, weights = [f(x) for x in nodes], [abs(weight(x)) for x in nodes]
    held: list[mpf] = []
    while len(held) <= degree:
        rest = [
            v - sum(c * x**k for k, c in enumerate(held))
            for x, v in zip(nodes, values, strict=True)
        ]
        powers = list(range(len(held), degree + 1))
        held.append(to_float(lawson(nodes, rest, weights, powers, 25 if held else 60)[0]))
    error = max(
        abs(w * (v - sum(c * x**k for k, c in enumerate(held))))
        for x, v, w in zip(nodes, values, weights, strict=True)
    )
    print(f"{name}: error 2^{float(mp.log(error, 2)):.1f}")
    for c in held:
        print(f"    {literal(c)}")


def odd(name: str, f: Function, largest: mpf, degree: int) -> None:
    """Fit (f(s) / s - 1) / z in z = s^2 for an odd f with f'(0) = 1, relative to f."""
    fit(
        name,
        lambda z: (f(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
        mpf(10) ** -6,
        largest**2,
        degree,
        lambda z: mp.sqrt(z) ** 3 / f(mp.sqrt(z)),
    )


def main() -> None:
    reduced = mp.log(2) / 2 * mpf("1.001")
    octant = mp.pi / 4 * mpf("1.001")
    fit(
        "exp: (e^r - 1 - r) / r^2",
        lambda r: (mp.expm1(r) - r) / r**2,
        -reduced,
        reduced,
        4,
        lambda r: r**2 / mp.expm1(r),
    )
    fit(
        "log: (log(1 + f) - f + f^2 / 2) / f^3",
        lambda f: (mp.log1p(f) - f + f * f / 2) / f**3,
        mp.sqrt(mpf("0.5")) - 1,
        mp.sqrt(2) - 1,
        8,
        lambda f: f**3 / mp.log1p(f),
    )
    fit(
        "erf, small: erf(a) / a - 1",
        lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1,
        mpf(10) ** -9,
        mpf("0.93") ** 2,
        6,
        lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)),
    )
    fit(
        "erf, large: log(erfc(u + 2))",
        lambda u: mp.log(mp.erfc(u + 2)),
        mpf("-1.09"),
        mpf(2),
        7,
        lambda u: mp.erfc(u + 2) / mp.erf(u + 2),
    )
    odd("sin", mp.sin, octant, 2)
    fit(
        "cos: (cos(r) - 1 + z / 2) / z^2",
        lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2,
        mpf(10) ** -6,
        octant**2,
        2,
        lambda z: z**2 / mp.cos(mp.sqrt(z)),
    )
    odd("asin", mp.asin, mp.sqrt(mpf("0.2502")), 5)
    odd("atan", mp.atan, mpf(1), 9)
    odd("sinh", mp.sinh, mp.sqrt(mpf("1.001")), 3)
    fit(
        "pow: (2^r - 1) / r",
        lambda r: (mpf(2) ** r - 1) / r,
        mpf("-0.5005"),
        mpf("0.5005"),
        5,
        lambda r: r / mpf(2) ** r,
    )
    leading = 2 / mp.log(2)
    limit = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1) * mpf("1.001")
    fit(
        "pow: (log2((1 + s) / (1 - s)) / s - 2 / ln 2 (1 + z / 3)) / z^2",
        lambda z: (
            (
                mp.log((1 + mp.sqrt(z)) / (1 - mp.sqrt(z))) / mp.log(2) / mp.sqrt(z)
                - leading * (1 + z / 3)
            )
            / z**2
        ),
        mpf(10) ** -6,
        limit**2,
        2,
        lambda z: z**2,
    )
    for name, value in (("2 / ln 2", leading), ("2 / (3 ln 2)", leading / 3)):
        print(f"{name}: {literal(to_float(value))} {literal(to_float(value - to_float(value)))}")


if __name__ == "__main__":
    main()
