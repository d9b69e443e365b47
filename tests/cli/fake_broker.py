"""A broker with prepared answers, on a unix socket and a TCP port."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple


class Request(NamedTuple):
    """A received request; `body` is its decoded JSON."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    broker: FakeBroker

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def answer(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(size)
        request = Request(self.command, self.path, json.loads(data) if data else None, dict(self.headers))
        self.broker.requests.append(request)
        if self.broker.silent:
            self.broker.silence.wait()
            self.close_connection = True
            return
        prepared = self.broker.answers.get((self.command, self.path.partition("?")[0]), (404, {"reason": "not here"}))
        status, body = prepared
        text = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if text:
            self.wfile.write(text)

    do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - as http.server calls them


class FakeBroker:
    """`answers`: (method, path) -> (status, JSON body). `requests`: the received requests, in order."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.requests: list[Request] = []
        self.silent = False
        self.silence = threading.Event()
        handler = type("BoundHandler", (Handler,), {"broker": self})
        self.servers: list[socketserver.BaseServer] = [
            socketserver.ThreadingUnixStreamServer(str(data_dir / "amqpctl.sock"), handler),
            socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler),
        ]
        self.tcp_port: int = self.servers[1].server_address[1]  # type: ignore[index]
        for server in self.servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self.silence.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()
        self.servers = []
        (self.data_dir / "amqpctl.sock").unlink(missing_ok=True)


class Result(NamedTuple):
    code: int
    out: str
    err: str


Ctl = Callable[..., Result]
