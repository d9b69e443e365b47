"""First paint: one request, sent in parallel with the one for the session."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from page_paths import BESIDE


def keep(held: list[Any], route: Any) -> None:
    """Store the route. Playwright does not accept a list's method as handler."""
    held.append(route)


@pytest.mark.parametrize(
    ("path", "asked", "shown"),
    [("#/", r"/api/overview\?fields=[^&]*$", ".tile b"), ("#/queues", r"/api/queues\?columns=", "main tbody tr")],
)
def test_first_request_does_not_wait_for_the_session(visit, shop, path: str, asked: str, shown: str) -> None:
    page = visit(shop, path, "anna").page
    urls: list[str] = []
    sessions: list[Any] = []
    page.on("request", lambda request: urls.append(request.url))
    page.route("**/api/amqpd/session", partial(keep, sessions))
    with page.expect_request(re.compile(asked)):
        page.reload(wait_until="commit")
    assert len(sessions) == 1
    assert page.locator("header, main").count() == 0
    sessions[0].continue_()
    page.locator(shown).first.wait_for()
    page.wait_for_timeout(200)
    assert len([url for url in urls if re.search(asked, url)]) == 1


def test_prefetched_answer_is_discarded_at_login(visit, shop) -> None:
    """The refusal of a request before the login is not shown after the login."""
    screen = visit(shop, "#/", None)
    screen.page.get_by_label("User").wait_for()
    screen.login("anna")
    screen.page.locator(".tile b").first.wait_for()
    assert screen.page.locator(".failure").count() == 0


def test_figures_do_not_wait_for_charts_and_samples(visit, shop) -> None:
    page = visit(shop, "#/", "anna").page
    held: list[Any] = []
    page.route(re.compile(r"uPlot|_age=|/api/amqpd/pulse|/api/nodes/"), partial(keep, held))
    page.reload(wait_until="commit")
    page.locator(".tile b").first.wait_for()
    for route in held:
        route.continue_()


NAMED = "[...document.querySelectorAll('script[src], link[rel=modulepreload]')].map(each => each.src || each.href)"


def test_list_needs_no_further_script(visit, shop) -> None:
    page = visit(shop, "#/queues", "anna").page
    scripts: list[str] = []
    page.on("request", lambda request: scripts.append(request.url) if request.url.endswith(".js") else None)
    page.reload()
    page.locator("main tbody tr").first.wait_for()
    named = page.evaluate(NAMED)
    assert len(named) >= 2
    assert set(scripts) == set(named)


def test_charts_and_node_are_painted_after_the_figures(visit, shop) -> None:
    page = visit(shop, "#/", "anna").page
    assert page.locator("main .card").count() >= 3
    page.add_init_script(BESIDE % (".tile b", "main .card"))
    page.reload()
    page.locator("main .card").nth(2).wait_for()
    assert page.evaluate("window.beside") == 0
