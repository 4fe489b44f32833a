"""Long lines of C are broken where C allows it, and mean the same afterwards."""

from __future__ import annotations

import re

import pytest

from aotgen.codegen.c_text import COLUMNS, wrap


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def test_arguments_break_at_the_outermost_call() -> None:
    args = ", ".join(f"ARENA(const float, {i * 1000})" for i in range(6))
    text = f"    some_kernel_with_a_long_name({args}, 0, 56);"
    lines = wrap(text).split("\n")
    assert all(len(line) <= COLUMNS for line in lines)
    assert all(line.count("(") == line.count(")") for line in lines[1:-1])
    assert squeezed("".join(lines)) == squeezed(text)


def test_strings_and_directives_stay_whole() -> None:
    text = f'    f("{"a, b " * 30}");'
    assert wrap(text).count('"') == 2 and f"{'a, b ' * 30}" in wrap(text)
    directive = "#define LONG " + "x + " * 40 + "y"
    assert wrap(directive) == directive


def test_comments_continue_as_comments() -> None:
    text = " * " + "word " * 40
    assert all(line.startswith(" * ") and len(line) <= COLUMNS for line in wrap(text).split("\n"))
    code = "    float x = 1.0f; /* " + "why " * 30 + "*/"
    first, *rest = wrap(code).split("\n")
    assert first.startswith("    /* why") and rest[-1] == "    float x = 1.0f;"


def test_comments_flow_on_into_their_next_line() -> None:
    text = "/* " + "long " * 25 + "\n * and short\n *\n * apart */"
    lines = wrap(text).split("\n")
    assert lines[1].endswith("long and short") and lines[2:] == [" *", " * apart */"]


@pytest.mark.parametrize("words", range(90, 104))
def test_the_end_of_a_comment_is_never_alone(words: int) -> None:
    text = f"/* long {'x' * (words - 14)} word */"
    assert all(line.strip(" *") != "/" for line in wrap(text).split("\n"))
    assert squeezed(wrap(text).replace("\n *", "\n")) == squeezed(text)


def test_a_long_name_breaks_behind_its_bracket() -> None:
    lines = wrap(f"static void {'n' * 70}(const float *restrict argument_one, int b)").split("\n")
    assert len(lines) == 2 and lines[0].endswith("(")
