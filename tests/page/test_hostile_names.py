"""Hostile names are shown as text: markup, 255 bytes, right-to-left, control characters, names of object properties."""

from __future__ import annotations

import pytest
from page_paths import PAGES, pages_of
from page_shop import CONTROL, HOSTILE, LONG, RIGHT_TO_LEFT, SCRIPT

LISTED = ["#/queues", "#/exchanges", "#/vhosts", "#/policies", "#/users"]


@pytest.mark.parametrize("path", LISTED)
def test_lists_show_hostile_names_as_text(visit, shop, path) -> None:
    screen = visit(shop, path, user="anna")
    screen.page.get_by_role("searchbox").first.fill("script>")
    screen.page.locator("main").get_by_text(SCRIPT).first.wait_for()
    assert "taken over" not in screen.page.title()
    assert screen.page.locator("main script, main img").count() == 0


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_pages_of_hostile_names_open(visit, shop, name) -> None:
    screen = visit(shop, user="anna")
    for path in pages_of(name):
        if path.startswith("#/vhosts") and name in ("..", " "):
            continue  # there is no such vhost
        screen.go(path)
        failures = screen.page.locator("main .failure")
        if name == "..":
            assert "A browser cannot request an object named . or .." in failures.inner_text()
            continue
        assert failures.count() == 0, (path, failures.all_inner_texts())
        assert screen.page.locator("main h1").inner_text() != "Not found", path
    assert screen.page.locator("main script, main img").count() == 0


def test_invisible_characters_are_shown(visit, shop) -> None:
    screen = visit(shop, "#/users", user="anna")
    shown = screen.page.locator("main").inner_text()
    assert "\u202e" not in shown
    assert "‹202e›" in shown
    assert CONTROL not in shown
    assert "escape‹1b›" in shown
    assert screen.page.get_by_role("link", name="‹20›", exact=True).count() == 1  # a space


def test_links_encode_names(visit, shop) -> None:
    screen = visit(shop, "#/queues", user="anna")
    screen.page.get_by_role("searchbox").first.fill("a/b?c")
    screen.page.get_by_role("link", name="a/b?c=d&e#f %2F 100%").click()
    screen.page.get_by_role("heading", level=1).filter(has_text="a/b?c=d&e#f %2F 100%").wait_for()


def test_long_names_fit_a_phone(visit, shop) -> None:
    screen = visit(shop, user="anna", size="phone")
    for path in (*LISTED, *pages_of(LONG), *pages_of(SCRIPT), "#/topology?tab=list"):
        screen.go(path)
        assert screen.is_as_wide_as_the_screen(), path


def test_vhost_with_a_hostile_name_can_be_selected(visit, shop) -> None:
    for name in (SCRIPT, RIGHT_TO_LEFT, "__proto__"):
        screen = visit(shop, user="anna")
        screen.page.get_by_label("Virtual host").first.select_option(name)
        for path in ("#/queues", "#/exchanges", "#/topology", "#/policies", "#/exports"):
            assert path in PAGES
            screen.go(path)
            failures = screen.page.locator("main .failure")
            assert failures.count() == 0, (path, failures.all_inner_texts())
