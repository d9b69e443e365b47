"""Every block of every page is run unchanged, or has a reason why not."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
from playing import Player

NAMES = pages.names()
PLAYED = [name for name in NAMES if any(block.language != "text" for block in pages.read(name).blocks)]


@pytest.mark.parametrize("name", NAMES)
def test_each_block_has_a_language_and_known_marks(name: str) -> None:
    assert pages.faults(pages.read(name)) == []


@pytest.mark.external
@pytest.mark.parametrize("name", PLAYED)
def test_page_runs(name: str, tmp_path: Path, not_run: list[str]) -> None:
    page = pages.read(name)
    with Player(page, tmp_path) as player:
        try:
            player.play()
        finally:
            not_run += [f"{block.where} {block.language}: {reason}" for block, reason in player.skipped]
    assert player.unused() == []
    assert "Traceback" not in player.broker.stderr, player.broker.stderr
