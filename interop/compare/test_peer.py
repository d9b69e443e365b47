"""Comparison with a live RabbitMQ: the records equal its answers, and each program decrypts what the other encrypts.

RabbitMQ is Debian's package, started as a separate node (interop/bench): `make test-peer` runs these tests, and CI
does. Without the package they are skipped; with TEST_REQUIRE_RABBITMQ it is installed, as root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from interop.bench import machine
from interop.bench.rabbitmq import PACKAGE, RabbitMQ, find_or_install, is_installed
from interop.compare import __main__ as compare
from interop.compare.api import held
from interop.compare.api.calls import ALL as CALLS
from interop.compare.api.state import State
from interop.compare.conversations import ALL
from interop.compare.party import Address
from interop.compare.steps import Conversation, Ctl, Http

pytestmark = [
    pytest.mark.external,
    pytest.mark.skipif("TEST_INTEROP_URL" in os.environ, reason="starts RabbitMQ itself"),
]

TOOLS = {"tools/queues", "tools/policies"}
"""The selected command-line conversations. Each costs RabbitMQ one second."""


class Peer(NamedTuple):
    node: RabbitMQ
    address: Address


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    if os.environ.get("TEST_REQUIRE_RABBITMQ"):
        missing = find_or_install(print)
        assert not missing, missing
    elif not is_installed():
        pytest.skip(f"needs RabbitMQ: apt install {PACKAGE}, or set TEST_REQUIRE_RABBITMQ=1")
    http_port = machine.free_port()
    node = compare.rabbitmq(tmp_path_factory.mktemp("rabbitmq"), http_port)
    try:
        node.start()
        compare._await_http(http_port)
        yield Peer(node, Address(node.host, node.port, http_port, compare.their_tools(node)))
    finally:
        node.stop()


def test_api_calls_have_the_recorded_status(peer: Peer) -> None:
    """This test is the first, because it needs a fresh broker. Fields are not compared: they depend on the statistics
    of the last second.
    """
    recorded = held.load()
    with State(peer.address) as state:
        found = held.hold_all(state, CALLS)
    pairs = zip(CALLS, found, strict=True)
    statuses = [(call.name(), recorded[call.name()].pop(0).status, answer.status) for call, answer in pairs]
    assert [each for each in statuses if each[1] != each[2]] == []


def selected_conversations() -> Sequence[Conversation]:
    """Return the quick conversations: few command lines, and nothing that RabbitMQ's statistics show later."""
    return [
        each
        for each in ALL.values()
        if not each.alone
        and (each.name in TOOLS or not any(isinstance(step, Ctl) for step in each.steps))
        and not any(isinstance(step, Http) and step.late_ms for step in each.steps)
    ]


@pytest.mark.on_demand
def test_conversations_have_the_recorded_answers(peer: Peer) -> None:
    """RabbitMQ is the same until conversations are recorded again: `make test-peer` runs this, CI does not."""
    found = compare.again(selected_conversations(), peer.address)
    assert len(found) > 300
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("value", ['<<"guest">>', '{guest,["a",42,-70000,<<1>>]}'])
def test_each_program_decrypts_what_the_other_encrypts(peer: Peer, value: str) -> None:
    """With the default algorithm, and with one from the guide."""

    def ours(*words: str) -> str:
        line = [sys.executable, "-P", "-m", "amqpd.cli", "-q", *words]
        return subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    def theirs(*words: str) -> str:
        code, out = peer.address.tools.run(["rabbitmqctl", "-q", *words], "")
        assert code == 0, out
        return out.strip()

    algorithm = ("--cipher", "aes_256_cbc", "--hash", "sha512", "--iterations", "1000")
    assert theirs("decode", ours("encode", value, "p w"), "p w") == value
    assert ours("decode", theirs("encode", value, "p w"), "p w") == value
    assert theirs("decode", ours("encode", value, "p w", *algorithm), "p w", *algorithm) == value
    assert ours("decode", theirs("encode", value, "p w", *algorithm), "p w") == value
