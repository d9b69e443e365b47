"""A node that opens no connection, for it is cut off: stock clients go to the next one that they know."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import aio_pika
import kombu
import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker, ProbableAccessDeniedError
from relay_rig import Rig, connections, wait_until

from amqpd.cluster.peer_server import CUT_OFF

TOLD = f"(320) 'CONNECTION_FORCED - {CUT_OFF}'"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Node a, which runs `here`, and b, which runs `v`."""
    with Rig(tmp_path_factory.mktemp("cut_off")) as rig:
        rig.own("here", "a")
        rig.own("v", "b")
        yield rig


@pytest.fixture
def cut_off(nodes: Rig) -> Iterator[Rig]:
    """a is."""
    nodes.close("a", CUT_OFF)
    wait_until(lambda: refused(nodes, "here"), "it opens nothing")
    yield nodes
    nodes.close("a", "")
    wait_until(lambda: not refused(nodes, "here"), "it opens connections again")


def refused(rig: Rig, vhost: str) -> bool:
    """Whether a closes a connection that is opened there, or was a moment ago, with that text."""
    try:
        connected(rig, vhost).close()
    except ProbableAccessDeniedError as error:  # so pika says it of whatever closes a connection that is being opened
        return TOLD in str(error)
    except ConnectionClosedByBroker as error:
        return error.reply_code == 320 and error.reply_text.endswith(CUT_OFF)
    return False


def connected(rig: Rig, vhost: str, *others: str) -> pika.BlockingConnection:
    """By a, or by one of the others."""
    return pika.BlockingConnection([pika.URLParameters(rig.url(name, vhost)) for name in ("a", *others)])


@pytest.mark.slow
@pytest.mark.parametrize("vhost", ["here", "v"])
def test_a_connection_is_refused_with_the_reason(cut_off: Rig, vhost: str) -> None:
    assert refused(cut_off, vhost)


@pytest.mark.parametrize("vhost", ["here", "v"])
@pytest.mark.slow
def test_who_is_connected_is_sent_away(nodes: Rig, vhost: str) -> None:
    connection = connected(nodes, vhost)
    connection.channel().queue_declare("mine", exclusive=True)
    nodes.close("a", CUT_OFF)
    with pytest.raises(ConnectionClosedByBroker) as ended:
        connection.process_data_events(60)
    assert (ended.value.reply_code, ended.value.reply_text) == (320, f"CONNECTION_FORCED - {CUT_OFF}")
    nodes.close("a", "")
    wait_until(lambda: not refused(nodes, "here"), "it opens connections again")


def test_one_that_waits_is_refused_soon(nodes: Rig) -> None:
    nodes.own("moving", None)
    found: list[tuple[float, str]] = []

    def opening() -> None:
        with pytest.raises(ProbableAccessDeniedError) as ended:
            connected(nodes, "moving")
        found.append((time.monotonic(), str(ended.value)))

    waiting = threading.Thread(target=opening)
    waiting.start()
    waiting.join(1)
    assert not found
    since = time.monotonic()
    nodes.close("a", CUT_OFF)
    waiting.join(60)
    nodes.close("a", "")
    wait_until(lambda: not refused(nodes, "here"), "it opens connections again")
    at, text = found[0]
    assert TOLD in text
    assert at - since < 10, "it has waited for an owner"


def test_pika_takes_the_next(cut_off: Rig) -> None:
    connection = connected(cut_off, "v", "b")
    assert len(connections(cut_off, "b")) == 1
    connection.close()


def test_kombu_and_celery_take_the_next(cut_off: Rig) -> None:
    urls = ";".join(cut_off.url(name, "v") for name in "ab")
    with kombu.Connection(urls) as connection:
        connection.ensure_connection(max_retries=3, interval_start=0)
        assert len(connections(cut_off, "b")) == 1


@pytest.mark.slow
def test_aio_pika_tries_again(nodes: Rig) -> None:
    """It knows one node: it is back when that node is."""

    async def go() -> None:
        connecting = asyncio.create_task(
            aio_pika.connect_robust(nodes.url("a", "here"), fail_fast=False, reconnect_interval=0.1)
        )
        await asyncio.sleep(1)
        await asyncio.to_thread(nodes.close, "a", "")
        async with asyncio.timeout(60):
            connection = await connecting
            await (await connection.channel()).declare_queue("mine", exclusive=True)
            await connection.close()

    nodes.close("a", CUT_OFF)
    wait_until(lambda: refused(nodes, "here"), "it opens nothing")
    asyncio.run(go())
