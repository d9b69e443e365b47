"""The generated references are what the code says; what they are made of is all there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from interop.manual.headers import INSIDE, READ, WRITTEN
from interop.manual.pages import DOCS, PAGES

ROOT = Path(__file__).parents[2]
AGAIN = "python -m interop.manual writes docs/reference anew"


@pytest.mark.parametrize("name", PAGES)
def test_it_is_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == PAGES[name](), AGAIN


def test_no_other_page_is_there() -> None:
    assert {f"reference/{path.name}" for path in (DOCS / "reference").glob("*.md")} == set(PAGES)


def test_every_name_with_an_x_is_in_a_reference() -> None:
    """Headers, arguments and exchange types: what the sources spell, and what the references say."""
    spelt = {
        found
        for room in ("amqpd/broker", "amqpd/channel", "routing")
        for path in (ROOT / room).rglob("*.py")
        for found in re.findall(r"""["'](x-[a-z]+(?:-[a-z]+)*)["']""", path.read_text("utf-8"))
    }
    said = set(re.findall(r"`(x-[a-z-]+)`", PAGES["reference/arguments.md"]() + PAGES["reference/headers.md"]()))
    assert spelt - said - INSIDE == set()


def test_each_header_has_its_page() -> None:
    for header in (*READ, *WRITTEN):
        text = (DOCS / f"{header.page}.md").read_text("utf-8")
        assert re.search(rf"\b{header.name}\b", text), header
