"""Accessibility (axe) in dark and light themes, screen sizes, and keyboard use."""

from __future__ import annotations

from page_paths import PAGES


def test_axe_finds_no_serious_fault_on_any_page(visit, shop) -> None:
    """In the dark theme only the colours are checked; everything else equals the light theme."""
    screen = visit(shop, user=None)
    screen.page.get_by_label("Password").wait_for()
    found = {"login": screen.axe() + _dark_theme_faults(screen)}
    screen.login("anna")
    for path in PAGES:
        screen.go(path)
        found[path] = screen.axe() + _dark_theme_faults(screen)
    assert {path: faults for path, faults in found.items() if faults} == {}


def _dark_theme_faults(screen) -> list[str]:
    screen.page.emulate_media(color_scheme="dark")
    screen.drawn()
    faults = screen.axe("color-contrast")
    screen.page.emulate_media(color_scheme="light")
    return [f"dark: {each}" for each in faults]


def test_axe_finds_no_serious_fault_in_dialogs(visit, shop) -> None:
    found = {}
    screen = visit(shop, user="anna")
    for path, button in (
        ("#/queues", "New queue"),
        ("#/users", "New user"),
        ("#/policies", "New policy"),
        ("#/vhosts", "New virtual host"),
        ("#/exports", "New export"),
        ("#/vhosts/shop-eu", "Delete"),
    ):
        screen.go(path)
        screen.page.get_by_role("button", name=button).first.click()
        screen.page.get_by_role("dialog").wait_for()
        found[path] = screen.axe()
        screen.page.keyboard.press("Escape")
        screen.page.get_by_role("dialog").wait_for(state="detached")
    assert {path: faults for path, faults in found.items() if faults} == {}


def test_pages_fit_phone_and_wall(visit, shop) -> None:
    """Each page on a phone, on a wall screen, and on a phone again."""
    screen = visit(shop, user="anna", size="phone")
    too_wide = []
    for path in PAGES:
        screen.go(path)
        for size in ("phone", "wall", "phone"):
            screen.size(size)
            if not screen.is_as_wide_as_the_screen():
                too_wide.append((path, size))
    assert too_wide == []


def test_theme_follows_the_system_or_the_user(visit, shop) -> None:
    background = "getComputedStyle(document.body.parentElement).backgroundColor"
    dark, light = visit(shop, user="anna", theme="dark"), visit(shop, user="anna", theme="light")
    black, white = dark.page.evaluate(background), light.page.evaluate(background)
    assert black != white
    dark.page.get_by_label("Colours").select_option("light")
    assert dark.page.evaluate(background) == white
    dark.page.reload()
    dark.settled()
    assert dark.page.evaluate(background) == white


def test_page_can_be_used_with_the_keyboard_only(visit, shop) -> None:
    screen = visit(shop, "#/queues", user="anna")
    page = screen.page
    page.locator("body").press("Tab")
    page.keyboard.press("Enter")  # to the content
    assert page.evaluate("document.activeElement.id") == "main"
    page.get_by_role("button", name="New queue").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    assert page.evaluate("document.querySelector('dialog').contains(document.activeElement)")
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    assert page.evaluate("document.activeElement.textContent") == "New queue"
    page.get_by_role("link", name="orders.asia").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=1).filter(has_text="orders.asia").wait_for()


def test_phone_navigation_is_a_menu(visit, shop) -> None:
    screen = visit(shop, user="anna", size="phone")
    link = screen.page.locator("#nav").get_by_role("link", name="Queues")
    assert not link.is_visible()
    screen.page.get_by_role("button", name="Menu").click()
    link.click()
    screen.page.get_by_role("heading", name="Queues", level=1).wait_for()
    assert not link.is_visible()
