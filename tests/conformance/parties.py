"""The broker under test, and a witness: a second connection that the test must not disturb."""

from __future__ import annotations

from pathlib import Path

from peer import Peer

from amqpd.testing import BrokerProcess

WITNESS_S = 30.0
COMPLAINTS = ("Traceback", "INTERNAL_ERROR")


class Broker:
    """Address, process and log of the broker.

    process: that of amqpd; None for a broker that runs elsewhere.
    """

    def __init__(self, url: str, process: BrokerProcess | None = None) -> None:
        self.url = url
        self.process = process
        self.seen = ""
        with Peer(url) as peer:
            self.is_rabbit = b"Erlang" in peer.start()["server_properties"]

    def peer(self, label: str = "t", chunking: str = "whole") -> Peer:
        return Peer(self.url, label=label, chunking=chunking)

    def rss_bytes(self) -> int:
        """Return the resident memory of the amqpd process. Raises RuntimeError for a broker that runs elsewhere."""
        if self.process is None:
            raise RuntimeError("the broker's process is not known")
        status = Path(f"/proc/{self.process.pid}/status").read_text("ascii")
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def complaints(self) -> str:
        """Return new log text that contains a traceback, or that the broker ended; otherwise an empty string."""
        if self.process is None:
            return ""
        log = self.process.stderr
        if not self.process.running:
            return f"the broker ended:\n{log}"
        new, self.seen = log.removeprefix(self.seen), log
        return new if any(word in new for word in COMPLAINTS) else ""


class Witness:
    """A connection that lives as long as the session and makes no errors."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.peer = self._connect()

    def _connect(self) -> Peer:
        peer = self.broker.peer("witness")
        peer.handshake()
        peer.channel()
        peer.queue()
        return peer

    def check_undisturbed(self) -> None:
        """Raise AssertionError unless a declare is answered within WITNESS_S; then reconnect first."""
        try:
            self.peer.method("queue.declare", queue=self.peer.q, exclusive=True)
            self.peer.expect("queue.declare-ok", within=WITNESS_S)
        except AssertionError as error:
            self.peer.socket.close()
            self.peer = self._connect()
            raise AssertionError(f"another connection was disturbed: {error}") from error
