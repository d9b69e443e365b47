"""Fixtures of the conformance suite: one clause per test, bytes in, bytes out.

`AMQPD_TEST_URL` names a running broker; without it the suite starts amqpd. RabbitMQ 3.10.8 is the oracle: cases not
marked as ours hold there, too. After every test a second, long-lived connection must be answered, and amqpd must not
have logged a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The tests share modules in this folder; importmode=importlib does not put it on the import path.
sys.path.insert(0, str(Path(__file__).parent))

from cases import CHUNKINGS, Case, Chunked
from deliveries import Declare
from parties import Broker, Witness
from peer import Peer
from profiles import THOROUGH

from amqpd.testing import BrokerProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    url = os.environ.get("AMQPD_TEST_URL")
    if url:
        yield Broker(url)
        return
    # At level warning client errors are not logged, so the kept part of the log includes the first traceback.
    with BrokerProcess(tmp_path_factory.mktemp("conformance"), settings={"log.level": "warning"}) as process:
        yield Broker(process.url, process)


@pytest.fixture
def broker_is_ours(broker: Broker) -> bool:
    return not broker.is_rabbit


@pytest.fixture(scope="session")
def witness(broker: Broker) -> Iterator[Witness]:
    second_connection = Witness(broker)
    yield second_connection
    second_connection.peer.socket.close()


@pytest.fixture(autouse=True)
def broker_is_healthy(broker: Broker, witness: Witness) -> Iterator[None]:
    """Check after the test that the broker is healthy and other connections work."""
    yield
    witness.check_undisturbed()
    complaints = broker.complaints()
    assert not complaints, f"the broker complained:\n{complaints}"


@pytest.fixture
def peer(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Peer]:
    """A connection with channel 1 open. For a case the handshake is sent whole, the case itself as its chunking
    says.
    """
    chunked = getattr(getattr(request.node, "callspec", None), "params", {}).get("chunked")
    label, chunking = "t", "whole"
    if isinstance(chunked, Chunked):
        label, chunking = chunked.case.id, chunked.chunking
        skip_where_rabbit_differs(broker, chunked.case)
    with broker.peer(label, chunking) as peer:
        peer.handshake()
        peer.channel()
        yield peer


@pytest.fixture(params=CHUNKINGS if THOROUGH else CHUNKINGS[:1])
def speaker(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Peer]:
    """A connection with channel 1 open. The test sends whole pieces, and in the thorough profile also byte by byte."""
    with broker.peer("s", request.param) as peer:
        peer.handshake()
        peer.channel()
        peer.bytewise_now()
        yield peer


def skip_where_rabbit_differs(broker: Broker, case: Case) -> None:
    if case.ours and broker.is_rabbit:
        pytest.skip(f"RabbitMQ 3.10.8: {case.ours}")


@pytest.fixture(params=["memory", "log"])
def declare_queue(request: pytest.FixtureRequest, witness: Witness) -> Iterator[Declare]:
    """Declares the peer's own queue: exclusive, or durable and deleted after the test. Both must behave alike."""
    declared: list[str] = []

    def declare(peer: Peer) -> None:
        if request.param == "memory":
            peer.queue()
        else:
            peer.queue(exclusive=False, durable=True)
            declared.append(peer.q)

    yield declare
    for name in declared:
        witness.peer.call("queue.delete", queue=name)
