"""Screenshots for the documentation: `make pictures` writes them to docs/pictures.

Without TEST_PICTURES they are written to a temporary folder, and the test checks that each can be made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

SIZE = {"width": 1200, "height": 750}
BYTES_MAX = 150_000
"""The limit is small because the pictures are committed again whenever the page changes."""


@pytest.fixture
def picture(tmp_path: Path, visit, shop) -> Callable[..., None]:
    folder = Path(os.environ.get("TEST_PICTURES") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str, path: str, theme: str = "light", before: Callable | None = None) -> None:
        screen = visit(shop, user="anna", theme=theme)
        screen.page.set_viewport_size(SIZE)
        screen.page.get_by_label("Virtual host").first.select_option("/")
        screen.go(path)
        if before is not None:
            before(screen.page)
            screen.settled()
        screen.page.mouse.move(0, 0)
        screen.page.evaluate("document.activeElement?.blur()")  # no focus ring
        file = folder / f"{name}.png"
        screen.page.screenshot(path=file, animations="disabled", caret="hide")
        assert 5_000 < file.stat().st_size < BYTES_MAX

    return take


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_picture_of_the_overview(picture, theme) -> None:
    def flows(page) -> None:
        page.locator(".tile").filter(has_text="published").filter(has_text=re.compile(r"^[1-9]")).wait_for()

    picture(f"overview-{theme}", "#/", theme, flows)


def test_picture_of_the_topology(picture) -> None:
    # Rates are updated by the broker's sweep, every five seconds.
    picture("topology", "#/topology", before=lambda page: page.locator("svg .line.flows").nth(4).wait_for())


def test_picture_of_the_queues(picture) -> None:
    picture("queues", "#/queues")


def test_picture_of_messages(picture) -> None:
    def browse(page) -> None:
        page.get_by_role("button", name="Browse").click()
        page.locator("main tbody tr").first.wait_for()

    picture("messages", "#/queues/%2F/invoices?tab=messages", "dark", browse)


def test_picture_of_a_policy_preview(picture) -> None:
    def write(page) -> None:
        page.get_by_role("button", name="New policy").click()
        page.get_by_label("Name", exact=True).fill("short")
        page.get_by_label("Pattern").fill("^(orders|invoices)")
        page.get_by_role("button", name="+ max-length", exact=True).click()
        page.get_by_role("spinbutton", name="max-length").fill("100")
        page.get_by_text("over the new length limit would be dropped").wait_for()

    picture("policy", "#/policies", before=write)
