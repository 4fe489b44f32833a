"""Where what can be made again is kept for this user: objects, QEMU's plugin."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder, by the XDG Base Directory Specification; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification wants relative ones ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "aotgen"
