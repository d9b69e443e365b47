"""The generated references are current and complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from interop.manual.headers import INSIDE, READ, WRITTEN
from interop.manual.pages import DOCS, PAGES

ROOT = Path(__file__).parents[2]
HINT = "python -m interop.manual writes docs/reference anew"


@pytest.mark.parametrize("name", PAGES)
def test_reference_is_current(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == PAGES[name](), HINT


def test_no_other_reference_exists() -> None:
    assert {f"reference/{path.name}" for path in (DOCS / "reference").glob("*.md")} == set(PAGES)


def test_every_x_name_is_in_a_reference() -> None:
    """Every x- header, argument and exchange type in the sources is in a reference."""
    in_sources = {
        found
        for folder in ("amqpd/broker", "amqpd/channel", "routing")
        for path in (ROOT / folder).rglob("*.py")
        for found in re.findall(r"""["'](x-[a-z]+(?:-[a-z]+)*)["']""", path.read_text("utf-8"))
    }
    in_references = set(
        re.findall(r"`(x-[a-z-]+)`", PAGES["reference/arguments.md"]() + PAGES["reference/headers.md"]())
    )
    assert in_sources - in_references - INSIDE == set()


def test_each_header_is_on_its_page() -> None:
    for header in (*READ, *WRITTEN):
        text = (DOCS / f"{header.page}.md").read_text("utf-8")
        assert re.search(rf"\b{header.name}\b", text), header
