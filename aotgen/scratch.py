"""A folder for what is needed while a process runs. Those of processes that were killed are removed
by the next one that wants a folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from aotgen.errors import ToolchainError

_LOCK = "lock"

_YOUNG_S = 60.0
"""A folder so new may be one whose owner has not locked it yet."""


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turns what the system says about files into our error.

    Args:
        place: folder that is written to, for messages.

    Raises:
        ToolchainError: it cannot be written, as when the disk is full.
    """
    try:
        yield
    except OSError as error:
        raise ToolchainError(
            f"cannot write in {place}: {error.strerror or error}",
            remedy="free space there, or set TMPDIR and XDG_CACHE_HOME to other places",
        ) from error


@contextlib.contextmanager
def own_folder(prefix: str) -> Iterator[Path]:
    """A folder in the system's place for temporary files; removed at the end.

    Args:
        prefix: of its name, the same for all folders of this kind.
    """
    root = Path(tempfile.gettempdir())
    _remove_left(root, prefix)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=root) as name,
        (Path(name) / _LOCK).open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def _remove_left(root: Path, prefix: str) -> None:
    """Remove folders whose lock nobody holds: it goes with the process, however that ends."""
    for folder in root.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < _YOUNG_S:
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
