"""Each page as each kind of user: allowed pages open, others name the needed tag, and no script fails."""

from __future__ import annotations

import pytest
from page_paths import LISTS, PAGES
from page_shop import PASSWORD, USERS

from amqpd.management.request import TAGS

KINDS = [name for name, tags in USERS.items() if tags]


def may(user: str, path: str) -> bool:
    return USERS[user] in TAGS[PAGES[path].role]


@pytest.mark.parametrize("user", KINDS)
def test_page_opens_only_with_the_needed_tag(visit, shop, user) -> None:
    screen = visit(shop, user=user)
    for path in PAGES:
        screen.go(path)
        main = screen.page.locator("main")
        refused = main.get_by_text("This page needs the user tag")
        failures = main.locator(".failure")
        if may(user, path):
            assert main.locator("h1").inner_text() == PAGES[path].heading, path
            assert failures.count() == 0, (path, failures.all_inner_texts())
        else:
            assert refused.count() == 1, path


@pytest.mark.parametrize("user", KINDS)
def test_navigation_offers_only_allowed_pages(visit, shop, user) -> None:
    screen = visit(shop, user=user)
    found = {link.get_attribute("href") for link in screen.page.locator("#nav a").all()}
    assert found == {path for path in LISTS if may(user, path)}


def test_user_without_tags_cannot_log_in(visit, shop) -> None:
    screen = visit(shop, user=None)
    screen.login("nobody")
    alert = screen.page.get_by_role("alert").filter(has_text="tag")
    alert.wait_for()
    assert screen.page.locator("#nav").count() == 0


def test_login_needs_the_right_password(visit, shop) -> None:
    screen = visit(shop, "#/queues", user=None)
    screen.login("anna", "wrong")
    screen.page.get_by_role("alert").filter(has_text="password").wait_for()
    screen.login("anna")
    screen.page.get_by_role("heading", name="Queues", level=1).wait_for()


def test_tab_ends_when_another_tab_logs_in_as_another_user(visit, shop) -> None:
    """Tabs share the cookie. A tab must not act as another user than it shows."""
    first = visit(shop, "#/queues", user="anna")
    first.has_logged_in("manny", PASSWORD)
    first.page.get_by_text("another tab logged out or in as another user").wait_for()
    first.login("anna")
    first.page.get_by_role("button", name="Log out").wait_for()
    first.settled()


def test_logout_ends_the_session(visit, shop) -> None:
    screen = visit(shop, "#/queues", user="anna")
    screen.page.get_by_role("button", name="Log out").click()
    screen.page.get_by_label("Password").wait_for()
    screen.page.reload()
    screen.page.get_by_label("Password").wait_for()


def test_buttons_need_permissions(visit, shop) -> None:
    looks, sets = visit(shop, "#/policies", user="mona"), visit(shop, "#/policies", user="polly")
    assert looks.page.get_by_role("button", name="New policy").count() == 0
    assert sets.page.get_by_role("button", name="New policy").count() == 1
    assert sets.page.get_by_role("link", name="Operator policies").count() == 0
    looks.go("#/vhosts/%2F")
    assert looks.page.get_by_role("button", name="Delete").count() == 0
