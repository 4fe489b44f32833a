#!/usr/bin/env bash
# All static checks: ruff and mypy on the Python, clang-format and cppcheck on the C runtime. Each is run even if one
# before it fails. A missing C tool is skipped with a note, except in CI.
set -uo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
bin="$venv/bin"
status=0

check() { # check NAME COMMAND...
    local name=$1
    shift
    if "$@"; then
        printf 'lint: %-14s ok\n' "$name"
    else
        printf 'lint: %-14s FAILED\n' "$name"
        status=1
    fi
}

tool() { # is a C tool there? In CI it must be.
    command -v "$1" >/dev/null 2>&1 && return 0
    if [ -n "${CI:-}" ]; then
        printf 'lint: %-14s FAILED (not installed)\n' "$1"
        status=1
    else
        printf 'lint: %-14s skipped (not installed)\n' "$1"
    fi
    return 1
}

sources="aotgen tests benchmarks examples scripts"
# shellcheck disable=SC2086
check "ruff check" "$bin/ruff" check --quiet --output-format concise $sources
# shellcheck disable=SC2086
check "ruff format" "$bin/ruff" format --check --quiet --output-format concise $sources
check mypy "$bin/mypy" --strict aotgen

rendered=$(mktemp -d)
trap 'rm -rf "$rendered"' EXIT
check "render runtime" "$bin/python" scripts/render_runtime.py "$rendered"
cp .clang-format board_support/qemu_plugin/*.[ch] "$rendered/"
for file in aot_hal.h aot_core.h aot_core.c; do
    "$bin/python" -c "from aotgen.codegen.environment import render; print(render('firmware/$file.j2'), end='')" \
        >"$rendered/$file"
done
mkdir "$rendered/board"
cp board_support/mps/*.[ch] board_support/mps/mps2/board.h "$rendered/board/"
files=$(find "$rendered" -name '*.[ch]' | sort)
if [ -n "$files" ]; then
    # shellcheck disable=SC2086
    tool clang-format && check clang-format clang-format --dry-run -Werror $files
    tool cppcheck && check cppcheck cppcheck --quiet --std=c99 --error-exitcode=1 \
        --enable=warning,portability --inline-suppr --suppress=missingIncludeSystem \
        --suppress='comparePointers:*/startup.c' "$rendered"
fi
exit $status
