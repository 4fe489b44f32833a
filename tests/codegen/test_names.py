"""C names and literals from anything a model file may hold."""

from __future__ import annotations

import re

import numpy as np

from aotgen.codegen.c_text import c_escape, comment_safe
from aotgen.codegen.literals import f32, f64, i32, i64
from aotgen.codegen.names import MAX_LENGTH, Namer, default_prefix, identifier, is_reserved

HOSTILE = [
    "",
    " ",
    "a b",
    "int",
    "while",
    "../x",
    '"quote"',
    "9lives",
    "a/b:0",
    "a.b:0",
    "ünïcode",
    "日本",
    "x" * 300,
    "*/ evil /*",
    "new\nline",
    "\\",
    "__",
    "main",
    "NULL",
    "a-b",
    "a_b",
]


def test_identifiers_are_legal_and_bounded() -> None:
    for name in HOSTILE:
        found = identifier(name)
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", found), (name, found)
        assert len(found) <= MAX_LENGTH


def test_namer_never_repeats_and_is_stable() -> None:
    first, second = Namer(), Namer()
    names = [first.name(n) for n in HOSTILE * 3]
    assert len({n.lower() for n in names}) == len(names)
    assert names == [second.name(n) for n in HOSTILE * 3]


def test_prefix() -> None:
    assert default_prefix("ResNet-18 v2") == "resnet_18_v2"
    assert default_prefix("18net").startswith("model")
    assert len(default_prefix("x" * 100)) <= 24
    for taken in ("m", "test", "Math", "weights", "int"):
        assert not is_reserved(default_prefix(taken))


def test_comment_cannot_be_ended() -> None:
    for name in HOSTILE:
        text = comment_safe(name)
        assert "*/" not in text and "\n" not in text and "\\" not in text


def test_string_literal_escapes() -> None:
    assert c_escape('a"b\\c?') == "a\\042b\\134c\\077"
    assert c_escape("é") == "\\303\\251"


def test_float_literals_read_back() -> None:
    rng = np.random.default_rng(0)
    for bits in rng.integers(0, 2**32, 3000, dtype=np.uint32):
        value = np.uint32(bits).view(np.float32)
        text = f32(float(value))
        if np.isnan(value):
            assert text == "NAN"
        elif np.isfinite(value):
            assert text.endswith("f") and np.float32(text[:-1]) == value
    assert [f32(x) for x in (0.1, 3, -0.0, float("inf"), float("-inf"))] == [
        "0.1f",
        "3.0f",
        "-0.0f",
        "INFINITY",
        "-INFINITY",
    ]
    assert f64(0.1) == "0.1" and f64(3) == "3.0"


def test_integer_literals_at_the_edge() -> None:
    assert i32(-(2**31)) == "INT32_MIN" and i32(7) == "7"
    assert i64(-(2**63)) == "INT64_MIN" and i64(-1) == "INT64_C(-1)"
