"""Lists: column choice, selected rows, phones, and the paged search for a virtual host."""

from __future__ import annotations

from typing import Any

import pytest

from amqpd.testing import BrokerProcess


@pytest.fixture
def broker(emptied: BrokerProcess) -> BrokerProcess:
    return emptied


def declare_queues(broker: BrokerProcess, count: int, messages: int = 0) -> None:
    """Declare queues q000, q001, ... with `messages` messages in each of the first three, `target`, and a stream."""
    queues = [{"vhost": "/", "name": f"q{n:03}", "durable": True, "arguments": {}} for n in range(count)]
    queues.append({"vhost": "/", "name": "target", "durable": True, "arguments": {}})
    stream = {"vhost": "/", "name": "stream", "durable": True, "arguments": {"x-queue-type": "stream"}}
    broker.api("POST", "/api/definitions", {"queues": [*queues, stream]})
    for n in range(min(3, count)):
        for _ in range(messages):
            publish(broker, f"q{n:03}")


def publish(broker: BrokerProcess, queue: str) -> None:
    message = {"properties": {}, "routing_key": queue, "payload": "x", "payload_encoding": "string"}
    broker.api("POST", "/api/exchanges/%2F/amq.default/publish", message)


def lengths(broker: BrokerProcess) -> dict[str, int]:
    found: Any = broker.api("GET", "/api/queues/%2F?columns=name,messages")
    return {each["name"]: each["messages"] for each in found}


def test_column_choice_is_stored(visit, broker) -> None:
    declare_queues(broker, 2)
    screen = visit(broker, "#/queues")
    page = screen.page
    header = page.locator("main thead")
    assert header.get_by_text("Message bytes").count() == 0
    page.locator("summary", has_text="Columns").click()
    page.get_by_label("Message bytes").check()
    page.get_by_label("Acked", exact=True).uncheck()
    header.get_by_text("Message bytes").wait_for()
    assert header.get_by_text("Acked", exact=True).count() == 0
    page.get_by_role("row", name="q000").get_by_text("0 B").wait_for()  # the broker sent the new column
    page.keyboard.press("Escape")
    page.get_by_label("Acked", exact=True).wait_for(state="detached")
    page.reload()
    header.get_by_text("Message bytes").wait_for()
    assert header.get_by_text("Acked", exact=True).count() == 0


def test_several_queues_are_purged_moved_and_deleted(visit, broker) -> None:
    declare_queues(broker, 4, 2)
    page = visit(broker, "#/queues").page
    dialog = page.get_by_role("dialog")
    for name in ("q000", "stream"):
        page.get_by_label(f"Select {name}").check()
    page.get_by_text("2 selected").wait_for()
    page.get_by_role("button", name="Purge").click()
    dialog.get_by_text("Purge deletes 2 ready messages of 1 queue").wait_for()
    dialog.get_by_role("button", name="Purge 2 messages").click()
    page.get_by_text("1 queue is purged.").wait_for()
    assert lengths(broker) == {"q000": 0, "q001": 2, "q002": 2, "q003": 0, "stream": 0, "target": 0}
    for name in ("q001", "q002", "q003"):
        page.get_by_label(f"Select {name}").check()
    page.get_by_role("button", name="Move messages").click()
    dialog.get_by_role("textbox", name="Queue").fill("target")
    dialog.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Move 4 messages").click()
    page.get_by_text("2 queues are moved.").wait_for()
    assert lengths(broker)["target"] == 4
    for name in ("q003", "target"):
        page.get_by_label(f"Select {name}").check()
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete with 4 messages").wait_for()
    # A message that arrives after the preview keeps its queue.
    publish(broker, "q003")
    dialog.get_by_role("button", name="Delete with 4 messages").click()
    dialog.get_by_role("alert").filter(has_text="1 queue is deleted. 1 failed: q003").wait_for()
    assert lengths(broker) == {"q000": 0, "q001": 0, "q002": 0, "q003": 1, "stream": 0}


def test_select_all_includes_other_pages(visit, broker) -> None:
    declare_queues(broker, 60)
    page = visit(broker, "#/queues?q=q0").page
    page.get_by_label("Select all queues of this page").check()
    page.get_by_text("50 selected").wait_for()
    page.get_by_role("button", name="Select all 60").click()
    page.get_by_text("60 selected").wait_for()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete 60 queues").click()
    page.get_by_text("60 queues are deleted.").wait_for()
    assert sorted(lengths(broker)) == ["stream", "target"]


def test_rows_fit_a_phone(visit, shop) -> None:
    """No cell of any list is outside the screen."""
    outside = """() => [...document.querySelectorAll("main tbody tr > td")]
        .filter(cell => cell.getBoundingClientRect().right > innerWidth || cell.scrollWidth > cell.clientWidth + 1)
        .map(cell => cell.textContent)"""
    screen = visit(shop, user="anna", size="phone")
    for path in ("#/queues", "#/exchanges", "#/connections", "#/channels", "#/vhosts", "#/users", "#/policies"):
        screen.go(path)
        assert screen.page.evaluate(outside) == [], path
        first = screen.page.locator("main tbody tr").first
        assert first.locator("td").count() > 3
        assert all(cell.is_visible() for cell in first.locator("td:not(:empty)").all()), path


def test_vhost_select_has_a_paged_search(visit, broker) -> None:
    names = [f"vh-{n:03}" for n in range(130)]
    broker.api("POST", "/api/definitions", {"vhosts": [{"name": name} for name in names]}, timeout_s=60)
    screen = visit(broker, "#/queues")
    page = screen.page
    choice = page.get_by_label("Virtual host").first
    choice.get_by_text("Search all 131").wait_for(state="attached")
    assert choice.locator("option").count() == 102
    choice.select_option(label="Search all 131 …")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("searchbox").fill("129")
    dialog.get_by_role("button", name="vh-129").click()
    dialog.wait_for(state="detached")
    assert choice.input_value() == "vh-129"
    assert "choice." not in page.url
    # The vhost is selected although it is not among the first hundred.
    page.reload()
    choice.get_by_text("Search all 131").wait_for(state="attached")
    screen.settled()
    assert choice.input_value() == "vh-129"


def test_loading_list_says_so(visit, broker) -> None:
    screen = visit(broker, "#/exchanges")
    free: list[bool] = []

    def hold(route: Any) -> None:
        while not free:
            screen.page.wait_for_timeout(10)
        route.continue_()

    screen.page.route("**/api/queues?*", hold)
    screen.page.evaluate("location.hash = '#/queues'")
    screen.page.get_by_text("Loading …").wait_for()
    free.append(True)
    screen.page.get_by_text("Loading …").wait_for(state="detached")
