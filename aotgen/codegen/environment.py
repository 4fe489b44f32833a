"""The Jinja environment that every C and OpenCL source of a generated project is rendered with.

Templates hold C and get precomputed values; an undefined name is an error, never an empty string.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2

from aotgen.codegen import literals
from aotgen.resources import templates_dir


@cache
def environment() -> jinja2.Environment:
    """The environment: StrictUndefined, block lines leave no blank lines, literal filters f32, f64,
    i32, i64.
    """
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(templates_dir())),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    env.filters.update(f32=literals.f32, f64=literals.f64, i32=literals.i32, i64=literals.i64)
    return env


def render(path: str, /, **context: Any) -> str:
    """Render ``templates/<path>`` with ``context``."""
    return environment().get_template(path).render(**context)
