"""A broker that dies and comes back: the page says so, keeps what it has, and goes on."""

from __future__ import annotations

import os
import signal
from typing import Any

from page_shop import part


def test_it_dies_and_comes_back(visit, broker) -> None:
    broker.api("PUT", "/api/queues/%2F/before", {})
    screen = visit(broker, "#/queues")
    page = screen.page
    page.get_by_role("link", name="before").wait_for()
    broker.kill()
    page.get_by_role("alert").filter(has_text="has not answered since").wait_for()
    assert page.get_by_role("link", name="before").count() == 1  # from before
    broker.start()
    # A login outlives the broker: one is where one was.
    page.get_by_text("The broker answers again").wait_for()
    assert page.get_by_role("alert").filter(has_text="has not answered since").count() == 0
    broker.api("PUT", "/api/queues/%2F/after", {})
    page.get_by_role("link", name="after").wait_for()


def test_it_stands_still_and_goes_on(visit, broker) -> None:
    """Stopped, not dead: nobody is logged out."""
    screen = visit(broker, "#/queues")
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        with screen.page.expect_request("**/api/queues?*"):
            pass
        screen.page.wait_for_timeout(500)  # it is on its way, and nobody answers
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    broker.api("PUT", f"/api/queues/%2F/{part('came later')}", {})
    screen.page.get_by_role("link", name="came later").wait_for()


def test_a_broker_that_hangs_is_told_of(visit, broker) -> None:
    page = visit(broker, "#/queues").page
    held: list[Any] = []
    hangs = True
    page.clock.install()
    page.route("**/api/queues?*", lambda route: held.append(route) if hangs else route.continue_())
    page.get_by_role("searchbox").fill("anything")
    while not held:
        page.clock.run_for(1000)
    page.clock.run_for(11000)
    page.get_by_role("alert").filter(has_text="has not answered since").wait_for()
    hangs = False
    for route in held:
        route.continue_()
    page.get_by_text("The broker answers again.").wait_for()


def test_a_page_that_is_opened_while_it_is_away(visit, broker) -> None:
    screen = visit(broker, "#/queues", user=None)
    screen.page.get_by_label("Password").wait_for()
    broker.kill()
    screen.login("guest", "guest")
    screen.page.get_by_role("alert").filter(has_text="does not answer").first.wait_for()
    broker.start()
    screen.login("guest", "guest")
    screen.page.get_by_role("heading", name="Queues", level=1).wait_for()


def test_a_login_ends_with_the_password(visit, broker) -> None:
    broker.api("PUT", "/api/users/eve", {"password": "one", "tags": "administrator"})
    screen = visit(broker, "#/users", user=None)
    screen.login("eve", "one")
    screen.page.get_by_role("heading", name="Users", level=1).wait_for()
    broker.api("PUT", "/api/users/eve", {"password": "two", "tags": "administrator"})
    screen.page.get_by_text("Your session has ended").wait_for()
