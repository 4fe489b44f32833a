# Every target sets up what it needs in .venv, so each works alone on a fresh clone.
#   make demo    compile, build and run the digits example
#   make test    the test suite
#   make sweep   the long sweeps that `make test` leaves out
#   make test-board   the tests on a whole emulated board (../shared/boards)
#   make lint    ruff, mypy, clang-format, cppcheck
#   make format  let ruff format the Python
#   make clean   remove what these made
VENV ?= .venv
PYTHON ?= python3
JOBS ?= 2
export VENV PYTHON

.PHONY: demo test sweep test-board lint format clean

demo:
	@scripts/setup.sh demo
	@$(VENV)/bin/python examples/digits/demo.py

test:
	@scripts/setup.sh dev
	@$(VENV)/bin/python -m pytest -q -n $(JOBS) --dist worksteal -m "not slow and not board" $(ARGS)

sweep:
	@scripts/setup.sh dev
	@$(VENV)/bin/python -m pytest -q -n $(JOBS) --dist worksteal -m slow $(ARGS)

test-board:
	@scripts/setup.sh board
	@$(VENV)/bin/python -m pytest -q -m board tests/board $(ARGS)

lint:
	@scripts/setup.sh dev
	@scripts/lint.sh

format:
	@scripts/setup.sh dev
	@$(VENV)/bin/ruff check --fix --quiet --select I aotgen tests benchmarks examples scripts
	@$(VENV)/bin/ruff format aotgen tests benchmarks examples scripts

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
