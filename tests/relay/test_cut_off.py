"""A node that is cut off from Kafka refuses connections: stock clients connect to the next node they know."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import aio_pika
import kombu
import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker, ConnectionWrongStateError, ProbableAccessDeniedError
from relay_rig import Rig, connections, wait_until

from amqpd.cluster.peer_server import CUT_OFF

REASON = f"(320) 'CONNECTION_FORCED - {CUT_OFF}'"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Node a, which owns `here`, and b, which owns `v`."""
    with Rig(tmp_path_factory.mktemp("cut_off")) as rig:
        rig.own("here", "a")
        rig.own("v", "b")
        yield rig


@pytest.fixture
def cut_off(nodes: Rig) -> Iterator[Rig]:
    """The nodes while a is cut off."""
    nodes.close("a", CUT_OFF)
    wait_until(lambda: is_refused(nodes, "here"), "node a refuses connections")
    yield nodes
    nodes.close("a", "")
    wait_until(lambda: not is_refused(nodes, "here"), "node a accepts connections")


def is_refused(rig: Rig, vhost: str) -> bool:
    """Return whether node a closes a new connection with the reason."""
    try:
        connect(rig, vhost).close()
    except ProbableAccessDeniedError as error:  # pika reports any close during the opening like this
        return REASON in str(error)
    except ConnectionClosedByBroker as error:
        return error.reply_code == 320 and error.reply_text.endswith(CUT_OFF)
    except ConnectionWrongStateError:  # it was open, and the node has closed it before `close`
        return False
    return False


def connect(rig: Rig, vhost: str, *others: str) -> pika.BlockingConnection:
    """Connect through a, or through one of the others."""
    return pika.BlockingConnection([pika.URLParameters(rig.url(name, vhost)) for name in ("a", *others)])


@pytest.mark.slow
@pytest.mark.parametrize("vhost", ["here", "v"])
def test_connection_is_refused_with_the_reason(cut_off: Rig, vhost: str) -> None:
    assert is_refused(cut_off, vhost)


@pytest.mark.parametrize("vhost", ["here", "v"])
@pytest.mark.slow
def test_open_connection_is_closed(nodes: Rig, vhost: str) -> None:
    connection = connect(nodes, vhost)
    connection.channel().queue_declare("mine", exclusive=True)
    nodes.close("a", CUT_OFF)
    with pytest.raises(ConnectionClosedByBroker) as ended:
        connection.process_data_events(60)
    assert (ended.value.reply_code, ended.value.reply_text) == (320, f"CONNECTION_FORCED - {CUT_OFF}")
    nodes.close("a", "")
    wait_until(lambda: not is_refused(nodes, "here"), "node a accepts connections")


def test_waiting_connection_is_refused_at_once(nodes: Rig) -> None:
    nodes.own("moving", None)
    found: list[tuple[float, str]] = []

    def open_connection() -> None:
        with pytest.raises(ProbableAccessDeniedError) as ended:
            connect(nodes, "moving")
        found.append((time.monotonic(), str(ended.value)))

    waiting = threading.Thread(target=open_connection)
    waiting.start()
    waiting.join(1)
    assert not found
    cut_off_at = time.monotonic()
    nodes.close("a", CUT_OFF)
    waiting.join(60)
    nodes.close("a", "")
    wait_until(lambda: not is_refused(nodes, "here"), "node a accepts connections")
    refused_at, text = found[0]
    assert REASON in text
    assert refused_at - cut_off_at < 10, "the client waited for an owner"


def test_pika_connects_to_next_node(cut_off: Rig) -> None:
    connection = connect(cut_off, "v", "b")
    assert len(connections(cut_off, "b")) == 1
    connection.close()


@pytest.mark.slow
def test_kombu_connects_to_next_node(cut_off: Rig) -> None:
    urls = ";".join(cut_off.url(name, "v") for name in "ab")
    with kombu.Connection(urls) as connection:
        connection.ensure_connection(max_retries=3, interval_start=0)
        assert len(connections(cut_off, "b")) == 1


@pytest.mark.slow
def test_aio_pika_reconnects(nodes: Rig) -> None:
    """The client knows one node; it connects when that node accepts connections again."""

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
    wait_until(lambda: is_refused(nodes, "here"), "node a refuses connections")
    asyncio.run(go())
