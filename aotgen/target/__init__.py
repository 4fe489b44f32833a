"""Targets, boards and toolchains: what the generated code runs on and what builds it."""
