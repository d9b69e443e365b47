"""Brokers for tests, in a process or in a thread, with assertions on messages, a movable clock and faults.

    def test_orders(amqpd_url):                       # amqp://guest:guest@127.0.0.1:<free port>/
        connection = pika.BlockingConnection(pika.URLParameters(amqpd_url))

    def test_alone(amqpd_vhost, amqpd_recorder):      # a vhost for this test only, deleted afterwards
        publish(amqpd_vhost.url)
        amqpd_recorder.assert_published(1, exchange="orders")

    def test_survives(tmp_path):
        with BrokerProcess(tmp_path) as broker:
            ...
            broker.kill()                             # SIGKILL; then start again, same data, same ports
            broker.start()

    def test_later():
        with BrokerThread(memory=True) as broker:
            broker.clock.advance(3600)

`plugin` has the fixtures `amqpd_broker`, `amqpd_url`, `amqpd_vhost` and `amqpd_recorder`. pytest finds them through
the entry point `pytest11` of an installed amqpd; in a checkout use `-p amqpd.testing`. The other modules do not need
pytest.

pytest imports this package in every environment with amqpd. So it imports only cheap parts of the standard library,
and nothing of the server before a broker starts in this process.
"""

from __future__ import annotations

from typing import Final

from amqpd.testing.broker_fixture import BrokerFixture, Vhost
from amqpd.testing.control import BrokerClock, BrokerFailed, BrokerFaults, NotRunning, NotSupported
from amqpd.testing.process import BrokerProcess, ReadyLine, parse_ready_line
from amqpd.testing.recorder import MessageFilter, RecordedMessage, Recorder
from amqpd.testing.thread import BrokerThread, embedded

__all__ = [
    "BrokerClock",
    "BrokerFailed",
    "BrokerFaults",
    "BrokerFixture",
    "BrokerProcess",
    "BrokerThread",
    "MessageFilter",
    "NotRunning",
    "NotSupported",
    "ReadyLine",
    "RecordedMessage",
    "Recorder",
    "Vhost",
    "embedded",
    "parse_ready_line",
]

pytest_plugins: Final = ("amqpd.testing.plugin",)
"""For pytest, which reads this name of each plugin."""
