"""A broker that is killed and restarted: the page says so, keeps its data and continues."""

from __future__ import annotations

import os
import signal
from typing import Any

from page_shop import part


def test_killed_broker_is_reported_until_it_returns(visit, broker) -> None:
    broker.api("PUT", "/api/queues/%2F/before", {})
    screen = visit(broker, "#/queues")
    page = screen.page
    page.get_by_role("link", name="before").wait_for()
    broker.kill()
    page.get_by_role("alert").filter(has_text="has not answered since").wait_for()
    assert page.get_by_role("link", name="before").count() == 1  # still shown
    broker.start()
    # The session survives the restart of the broker.
    page.get_by_text("The broker answers again").wait_for()
    assert page.get_by_role("alert").filter(has_text="has not answered since").count() == 0
    broker.api("PUT", "/api/queues/%2F/after", {})
    page.get_by_role("link", name="after").wait_for()


def test_suspended_broker_keeps_the_session(visit, broker) -> None:
    """The broker is suspended with SIGSTOP, so the user stays logged in."""
    screen = visit(broker, "#/queues")
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        with screen.page.expect_request("**/api/queues?*"):
            pass
        screen.page.wait_for_timeout(500)  # the request is sent but not answered
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    broker.api("PUT", f"/api/queues/%2F/{part('came later')}", {})
    screen.page.get_by_role("link", name="came later").wait_for()


def test_hanging_broker_is_reported(visit, broker) -> None:
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


def test_login_while_the_broker_is_unreachable(visit, broker) -> None:
    screen = visit(broker, "#/queues", user=None)
    screen.page.get_by_label("Password").wait_for()
    broker.kill()
    screen.login("guest", "guest")
    screen.page.get_by_role("alert").filter(has_text="does not answer").first.wait_for()
    broker.start()
    screen.login("guest", "guest")
    screen.page.get_by_role("heading", name="Queues", level=1).wait_for()


def test_password_change_ends_the_session(visit, broker) -> None:
    broker.api("PUT", "/api/users/eve", {"password": "one", "tags": "administrator"})
    screen = visit(broker, "#/users", user=None)
    screen.login("eve", "one")
    screen.page.get_by_role("heading", name="Users", level=1).wait_for()
    broker.api("PUT", "/api/users/eve", {"password": "two", "tags": "administrator"})
    screen.page.get_by_text("Your session has ended").wait_for()
