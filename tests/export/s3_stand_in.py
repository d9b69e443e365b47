"""A local S3 with faults: moto's server behind a proxy that can kill a client, hang up, never answer, or answer 500.

moto keeps parts of a multipart upload apart until it is completed, refuses small parts, and has conditional writes. The
proxy counts requests that change something, and does something else with the chosen one. The objects stay in moto, so a
proxy that hangs up is a store whose front end is killed.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

START_S = 120.0


class S3StandIn:
    """moto and the proxy.

    Attributes:
        direct_url: moto, for a client that holds the interpreter's lock during requests, as deltalake's does.
        writes: Number of requests that change something, since `reset`.
        fault: Called with the number of such a request, from 1 on. Returns "" or "kill", "hang up",
            "stall" (no answer until `reset`) or "500". With " after" at the end the request has reached the store.
        victim: Process to kill.
    """

    def __init__(self) -> None:
        self._start_moto()
        self._lock = threading.Lock()
        self._conditional = threading.Lock()
        self._reset_done = threading.Event()
        self.victim: subprocess.Popen[Any] | None = None
        self.reset()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:  # the client was killed
                    self.close_connection = True

            def log_message(self, format: str, *arguments: object) -> None:
                return

            def do_GET(self) -> None:
                stand_in.forward(self)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - names of http.server

        self._proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._proxy.daemon_threads = True
        self._thread = threading.Thread(target=self._proxy.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._proxy.server_address[1]}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": "amqpd",
            "AWS_SECRET_ACCESS_KEY": "amqpd",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
        }
        until = time.monotonic() + START_S
        while True:
            try:
                self.call("PUT", "/lake")
                return
            except OSError:
                if time.monotonic() > until:
                    self.close()
                    raise
                if self._moto.poll() is not None:  # another process has taken the port meanwhile
                    self._start_moto()
                time.sleep(0.05)

    def _start_moto(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port: int = free.getsockname()[1]
        self.direct_url = f"http://127.0.0.1:{self._port}"
        command = [sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        self._moto = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def reset(self, fault: Callable[[int], str] = lambda number: "") -> None:
        self._reset_done.set()
        self._reset_done = threading.Event()
        self.writes = 0
        self.fault = fault

    def clear(self) -> None:
        """Remove all objects and unfinished uploads."""
        self.call("POST", "/moto-api/reset")
        self.call("PUT", "/lake")

    def call(self, method: str, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def forward(self, handler: BaseHTTPRequestHandler) -> None:
        fault = ""
        if handler.command not in ("GET", "HEAD"):
            with self._lock:
                self.writes += 1
                fault = self.fault(self.writes)
        headers = {name.title(): value for name, value in handler.headers.items()}
        body = handler.rfile.read(int(headers.get("Content-Length") or 0))
        if headers.get("Transfer-Encoding") == "chunked":  # pyarrow's client
            del headers["Transfer-Encoding"]
            while size := int(handler.rfile.readline(), 16):
                body += handler.rfile.read(size)
                handler.rfile.readline()
            handler.rfile.readline()
        if fault and not fault.endswith(" after"):
            self._disturb(handler, fault)
            return
        # moto checks a condition and writes in two steps, which a store does in one.
        with self._conditional if {"If-Match", "If-None-Match"} & headers.keys() else nullcontext():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            try:
                connection.request(handler.command, handler.path, body, headers)
                answer = connection.getresponse()
                data = answer.read()
            finally:
                connection.close()
        if fault:
            self._disturb(handler, fault.removesuffix(" after"))
            return
        handler.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                handler.send_header(name, value)
        length = answer.getheader("Content-Length") if handler.command == "HEAD" else str(len(data))
        handler.send_header("Content-Length", length or "0")
        handler.end_headers()
        handler.wfile.write(data)

    def _disturb(self, handler: BaseHTTPRequestHandler, fault: str) -> None:
        if fault == "500":
            handler.send_error(500)
            return
        if fault == "stall":
            self._reset_done.wait()
        if fault == "kill":
            assert self.victim is not None
            os.kill(self.victim.pid, signal.SIGKILL)
            self.victim.wait()
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()
        self._moto.kill()
        self._moto.wait()
