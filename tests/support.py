"""What the tests share: tools outside Python that a test needs."""

from __future__ import annotations

import os
import shutil

import pytest


def require_tool(*names: str) -> None:
    """Skip the test when a program is not installed; on CI (environment variable CI) fail."""
    missing = [name for name in names if shutil.which(name) is None]
    if not missing:
        return
    reason = f"not installed: {', '.join(missing)}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
