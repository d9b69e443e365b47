"""Fixtures of the conformance suite: a clause per test, bytes in, bytes out.

`AMQPD_TEST_URL` names a running broker (RabbitMQ 3.10.8 is the oracle: what is not marked as ours holds there too);
without it an amqpd of our own is started. After every test a second, long-lived connection must still be answered
within a second, and our broker must not have logged a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# What the tests share lies beside them; importmode=importlib leaves this folder off the path.
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
    # A client's mistake is no warning; so the log that is kept reaches back to the first traceback.
    with BrokerProcess(tmp_path_factory.mktemp("conformance"), settings={"log.level": "warning"}) as process:
        yield Broker(process.url, process)


@pytest.fixture
def broker_is_ours(broker: Broker) -> bool:
    return not broker.is_rabbit


@pytest.fixture(scope="session")
def witness(broker: Broker) -> Iterator[Witness]:
    seen = Witness(broker)
    yield seen
    seen.peer.socket.close()


@pytest.fixture(autouse=True)
def undisturbed(broker: Broker, witness: Witness) -> Iterator[None]:
    """The rest of the broker is as it was before the test."""
    yield
    witness.testify()
    complaints = broker.complaints()
    assert not complaints, f"the broker complained:\n{complaints}"


@pytest.fixture
def peer(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Peer]:
    """A connection with channel 1 open. For a case the handshake runs whole and the case itself as it asks for."""
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
def kept(request: pytest.FixtureRequest, witness: Witness) -> Iterator[Declare]:
    """Declares the peer's own queue: exclusive, or durable and deleted after the test. Both must behave alike."""
    made: list[str] = []

    def declare(peer: Peer) -> None:
        if request.param == "memory":
            peer.queue()
        else:
            peer.queue(exclusive=False, durable=True)
            made.append(peer.q)

    yield declare
    for name in made:
        witness.peer.call("queue.delete", queue=name)
