"""Ten thousand queues: the broker pages, sorts and searches lists, and the picture shows the busiest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from page_paths import BESIDE

from amqpd.testing import BrokerProcess

MANY = 10_000
USERS = 119


@pytest.fixture(scope="module")
def crowd(browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("crowd") / "broker") as broker:
        queues = [{"vhost": "/", "name": f"queue-{n:05}", "durable": False} for n in range(MANY)]
        bindings = [
            {"vhost": "/", "source": "amq.topic", "destination": f"queue-{n:05}", "destination_type": "queue",
             "routing_key": f"key.{n}"} for n in range(0, MANY, 2)
        ]  # fmt: skip
        users = [{"name": f"user-{n:03}", "password_hash": "", "tags": ""} for n in range(USERS)]
        rights = {"vhost": "/", "configure": "", "write": ".*", "read": ""}
        permissions = [{"user": each["name"], **rights} for each in users]
        document = {"queues": queues, "bindings": bindings, "users": users, "permissions": permissions}
        broker.api("POST", "/api/definitions", document, timeout_s=120)
        for name in ("queue-07777", "queue-00002"):
            message = {"properties": {}, "routing_key": name, "payload": "x", "payload_encoding": "string"}
            broker.api("POST", "/api/exchanges/%2F/amq.default/publish", message)
        yield broker


def test_queue_list_is_paged_sorted_and_searched_by_the_broker(visit, crowd) -> None:
    screen = visit(crowd, "#/queues")
    page = screen.page
    sizes: list[int] = []
    page.on("response", lambda answer: sizes.append(len(answer.body())) if "/api/queues" in answer.url else None)
    page.get_by_text("10,000 queues").wait_for()
    rows = page.locator("main tbody tr")
    assert rows.count() == 50
    page.get_by_role("button", name="Total").click()
    page.get_by_role("button", name="Total").click()
    page.get_by_role("row").nth(1).get_by_text("queue-00002").or_(
        page.get_by_role("row").nth(1).get_by_text("queue-07777")
    ).wait_for()
    page.get_by_role("button", name="Last").click()
    page.get_by_role("spinbutton", name="Page").wait_for()
    page.get_by_role("searchbox").first.fill("queue-0777")
    page.get_by_text("10 of 10,000 queues").wait_for()
    assert rows.count() == 10
    assert sizes
    assert max(sizes) < 100_000


def test_first_paint_has_one_screen_of_rows(visit, crowd) -> None:
    page = visit(crowd, "#/queues").page
    page.add_init_script(BESIDE % ("main tbody tr", "main tbody tr"))
    page.reload()
    page.locator("main tbody tr").nth(49).wait_for()
    assert page.evaluate("window.beside") == 20


@pytest.mark.parametrize(
    ("path", "title", "searched", "found"),
    [
        ("#/exchanges/%2F/amq.topic?tab=bindings", "5,000 bindings", "KEY.4242", "1 of 5,000 bindings"),
        ("#/vhosts/%2F", "120 permissions", "user-11", "9 of 120 permissions"),
    ],
)
def test_list_within_a_page_is_paged_and_searched(
    visit, crowd, path: str, title: str, searched: str, found: str
) -> None:
    """The page polls one page of the bindings of an exchange and of the permissions of a vhost, not all of them."""
    page = visit(crowd, "#/").page
    sizes: dict[str, int] = {}
    page.on("response", lambda answer: sizes.update({answer.url: len(answer.body())}))
    page.goto(f"{crowd.http_url}/{path}")
    page.get_by_text(title, exact=True).wait_for()
    table = page.get_by_role("region", name=title.split()[1], exact=True)
    assert table.locator("tbody tr").count() == 50
    page.get_by_role("button", name="Next").first.click()
    page.get_by_role("spinbutton", name="Page").first.wait_for()
    page.get_by_role("searchbox").first.fill(searched)
    page.get_by_text(found).wait_for()
    polled = {url: size for url, size in sizes.items() if f"/{title.split()[1]}" in url}
    assert polled
    assert max(polled.values()) < 20_000, polled


def test_topology_shows_the_busiest_and_finds_others(visit, crowd) -> None:
    screen = visit(crowd, "#/topology")
    page = screen.page
    page.get_by_text("the busiest of 10,000").wait_for()
    assert 10 < page.locator("svg .box").count() < 60  # most are collapsed
    page.get_by_role("button", name="Expand all").click()
    page.locator("svg .box").nth(400).wait_for()
    page.get_by_role("searchbox").first.fill("queue-04242")
    page.get_by_text("1 queue and 1 exchange").wait_for()
    page.locator("svg .box.queue a").click()
    page.get_by_role("heading", level=1).filter(has_text="queue-04242").wait_for()


def test_policy_preview_with_ten_thousand_queues(visit, crowd) -> None:
    screen = visit(crowd, "#/policies")
    page = screen.page
    page.get_by_role("button", name="New policy").click()
    page.get_by_label("Name", exact=True).fill("all")
    page.get_by_label("Pattern").fill("^queue-0")
    page.get_by_role("button", name="+ max-length", exact=True).click()
    page.get_by_text("The policy matches 10,000 queues and 0 exchanges").wait_for()
    page.keyboard.press("Escape")
    screen.go("#/exports")
    page.get_by_text("0 exports").wait_for()
