"""Build hook: a wheel carries templates/ and board_support/ inside the package.

An editable install reads them in place.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ResourceHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "aotgen-resources"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            for folder in ("templates", "board_support"):
                build_data["force_include"][folder] = f"aotgen/_data/{folder}"
