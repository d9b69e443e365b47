"""A front end for another protocol, embedded in the server: listed, stopped and started with AMQP, and notified."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from amqpd.broker.broker import Broker
from amqpd.broker.listeners import BrokerListener
from amqpd.config import Settings
from amqpd.listeners import Listener, bound_sockets
from amqpd.protocol_server import FrontEnd
from amqpd.server import Server
from amqpd.storage.metadata.store import MetadataError
from amqpd.testing import embedded, parse_ready_line


class VhostEvents(BrokerListener):
    def __init__(self) -> None:
        self.received: list[str] = []

    def vhost_deleted(self, name: str) -> None:
        self.received.append(f"vhost {name} deleted")


class Echo(FrontEnd):
    """Test front end that sends back each line."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.events = VhostEvents()
        broker.clients.append(self.events)
        self.port = 0
        self.renewed: list[Settings] = []
        self.closed = False
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        for sock in bound_sockets("127.0.0.1", self.port):
            self.port = sock.getsockname()[1]
            self.listeners.append(Listener("echo", "127.0.0.1", self.port))
            self._servers.append(await asyncio.start_server(self._serve, sock=sock))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def stop(self) -> None:
        self.listeners.clear()
        for server in self._servers:
            server.close()
        self._servers.clear()

    def renew(self, settings: Settings) -> None:
        self.renewed.append(settings)

    def close(self) -> None:
        self.closed = True


def echo_of(server: Server) -> Echo:
    (found,) = [each for each in server.front_ends if isinstance(each, Echo)]
    return found


async def echo_reply(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello\n")
    line = await reader.readline()
    writer.close()
    return line


async def api(server: Server, method: str, path: str) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port("http"))
    head = f"{method} {path} HTTP/1.0\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
    writer.write(head.encode())
    status, _, rest = (await reader.read()).partition(b"\r\n")
    writer.close()
    assert status.split()[1].startswith(b"2"), (status, rest)
    body = rest.partition(b"\r\n\r\n")[2]
    return json.loads(body) if body else None


async def test_front_end_is_listed_stopped_and_started_with_amqp(tmp_path: Path) -> None:
    async with embedded(tmp_path, guests=[Echo]) as server:
        echo = echo_of(server)
        assert await echo_reply(echo.port) == b"hello\n"
        ready = parse_ready_line(server.ready_line(0))
        assert ready is not None
        assert list(ready.listeners) == ["amqp", "echo", "http"]
        ports = {name: server.port(name) for name in ("amqp", "echo", "http")}
        listeners = (await api(server, "GET", "/api/overview"))["listeners"]
        assert {each["protocol"]: each["port"] for each in listeners} == ports
        await api(server, "POST", "/api/amqpd/stop_app")
        status = await api(server, "GET", "/api/amqpd/status")
        assert (status["app_running"], [each["protocol"] for each in status["listeners"]]) == (False, ["http"])
        for name in ("amqp", "echo"):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", ports[name])
        await api(server, "POST", "/api/amqpd/start_app")
        assert {name: server.port(name) for name in ports} == ports
        assert await echo_reply(echo.port) == b"hello\n"
    assert echo.closed


async def test_front_end_gets_vhost_events_and_new_settings(tmp_path: Path) -> None:
    async with embedded(tmp_path, guests=[Echo]) as server:
        echo = echo_of(server)
        await api(server, "PUT", "/api/vhosts/shop")
        await api(server, "DELETE", "/api/vhosts/shop")
        assert echo.events.received == ["vhost shop deleted"]
        server.apply_settings(server.settings)
        assert echo.renewed == [server.settings]


async def test_failing_front_end_does_not_prevent_clean_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class FailingEcho(Echo):
        async def stop(self) -> None:
            await super().stop()
            raise RuntimeError("a bug of the guest")

    async with embedded(tmp_path, guests=[FailingEcho]) as server:
        pass
    assert server.stopped.is_set()
    assert "a protocol server did not stop" in caplog.text


async def test_failed_start_releases_data_directory(tmp_path: Path) -> None:
    async with embedded(tmp_path):
        pass
    with pytest.raises(MetadataError):
        async with embedded(tmp_path, settings={"metadata.url": "nosuch://127.0.0.1/x"}):
            pass
    async with embedded(tmp_path) as server:
        assert server.port("amqp")
