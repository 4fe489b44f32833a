"""Pictures by matplotlib: the same bytes for the same data, and mistakes in words of the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aotgen.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMATS = "use .png, .svg or .pdf"


@contextmanager
def picture(path: Path) -> Iterator[None]:
    """Around the code that draws a picture at ``path``.

    Raises:
        UsageError: its suffix is no format, it cannot be written, or matplotlib is missing.
    """
    if not path.suffix:
        raise UsageError(f"{path} does not say which picture it is", remedy=_FORMATS)
    try:
        yield
    except ImportError as error:
        raise UsageError(
            "a plot needs matplotlib, which is not installed", remedy="`pip install aotgen[report]`"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{path}: there is no such picture format ({error})", remedy=_FORMATS
        ) from error
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def save(figure: Figure, path: str) -> None:
    """Write a figure without the date, and without the names drawn by chance, that matplotlib would
    put into the file.

    Args:
        figure: what to write.
        path: its suffix (.png, .svg, .pdf) is the format.

    Raises:
        ValueError: matplotlib knows no such format.
        OSError: the file cannot be written.
    """
    import matplotlib

    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    metadata = next((m for s, m in dates.items() if path.endswith(s)), None)
    with matplotlib.rc_context({"svg.hashsalt": "aotgen"}):
        figure.savefig(path, metadata=metadata)
