"""The loopback board, started once by each worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runner.loopback import Board, running_board


@pytest.fixture(scope="session")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    with running_board(tmp_path_factory.getbasetemp().parent / "loopback-board.lock") as started:
        yield started


@pytest.fixture(autouse=True)
def own_ssh_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys and hosts of whoever runs the tests have no say."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.delenv("AOTGEN_SSH_CONFIG", raising=False)
    monkeypatch.delenv("AOTGEN_SSH_WRAPPER", raising=False)
