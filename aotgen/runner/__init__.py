"""Runners: where the programs of a generated project run. See ``aotgen.runner.base``."""
