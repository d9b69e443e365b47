"""A local REST catalog of Iceberg with faults: its tables are in a SQLite file, so it can be killed and started again.

It has the requests that an export sends: configuration, namespaces, loading, creating and changing a table. Requests
that change something are counted, and one of them ends with a fault.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest

_STATUSES = {
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
}


class RestCatalogStandIn:
    """The catalog as an HTTP server.

    Attributes:
        url: Its address.
        writes: Number of requests that change something, since `reset`.
        fault: Called with the number of such a request, from 1 on. Returns "" or a status, "hang up", "stall" (no
            answer until `close`), and with " after" at the end to do it after the catalog has done the request. "twice"
            does the request twice and returns the second answer, as a proxy does that has lost the first one.
    """

    def __init__(self, directory: Path, warehouse: str, **properties: str) -> None:
        self._given = {"uri": f"sqlite:///{directory / 'rest.db'}", "warehouse": warehouse, **properties}
        self._lock = threading.Lock()
        self._port = 0
        self.reset()
        self.start()
        self.url = f"http://127.0.0.1:{self._port}"

    def reset(self, fault: Callable[[int], str] = lambda number: "") -> None:
        self.writes = 0
        self.fault = fault

    def start(self) -> None:
        """Start it, with the same address and tables as before."""
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *arguments: object) -> None:
                return

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:  # the client was killed
                    self.close_connection = True

            def do_GET(self) -> None:
                stand_in.handle(self)

            do_POST = do_GET  # noqa: N815 - names of http.server

        self._closing = threading.Event()
        self._catalog = SqlCatalog("stand-in", **self._given)
        self._connections: set[socket.socket] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it, with all connections."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._catalog.close()

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        self._connections.add(handler.connection)
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        parts = handler.path.partition("?")[0].strip("/").split("/")[1:]
        fault = ""
        if handler.command == "POST":
            with self._lock:
                self.writes += 1
                fault = self.fault(self.writes)
        if fault and not fault.endswith(" after") and fault != "twice":
            self._disturb(handler, fault)
            return
        for _ in range(2 if fault == "twice" else 1):
            with self._lock:
                status, answer = self._answer(handler.command, parts, body)
        if fault.endswith(" after"):
            self._disturb(handler, fault.removesuffix(" after"))
            return
        if self._closing.is_set():
            return
        self._send(handler, status, answer)

    def _send(self, handler: BaseHTTPRequestHandler, status: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _disturb(self, handler: BaseHTTPRequestHandler, fault: str) -> None:
        if fault == "stall":
            self._closing.wait()
        elif fault != "hang up":
            self._send(handler, int(fault), {"error": {"message": "not now", "type": "Fault", "code": int(fault)}})
            return
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, method: str, parts: list[str], body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            return 200, self._done(method, parts, body)
        except tuple(_STATUSES) as error:
            status = _STATUSES[type(error)]
            return status, {"error": {"message": str(error), "type": type(error).__name__, "code": status}}

    def _done(self, method: str, parts: list[str], body: bytes) -> dict[str, Any]:
        given = json.loads(body) if body else {}
        match method, parts:
            case "GET", ["config"]:
                return {"defaults": {}, "overrides": {}}
            case "GET", ["namespaces", namespace]:
                return {"namespace": [namespace], "properties": self._catalog.load_namespace_properties(namespace)}
            case "POST", ["namespaces"]:
                self._catalog.create_namespace(tuple(given["namespace"]))
                return {"namespace": given["namespace"], "properties": {}}
            case "GET", ["namespaces", namespace, "tables", name]:
                return self._shown(self._catalog.load_table((namespace, name)))
            case "POST", ["namespaces", namespace, "tables"]:
                return self._staged(namespace, given)
            case "POST", ["namespaces", namespace, "tables", name]:
                request = CommitTableRequest.model_validate(given)
                table: Any = SimpleNamespace(name=lambda: (namespace, name))
                made = self._catalog.commit_table(table, request.requirements, request.updates)
                return {
                    "metadata-location": made.metadata_location,
                    "metadata": json.loads(made.metadata.model_dump_json()),
                }
        raise NoSuchTableError(f"{method} {parts}")

    def _staged(self, namespace: str, given: dict[str, Any]) -> dict[str, Any]:
        from pyiceberg.catalog.rest import CreateTableRequest

        identifier = (namespace, given["name"])
        if not self._catalog.namespace_exists(namespace):
            raise NoSuchNamespaceError(namespace)
        if self._catalog.table_exists(identifier):
            raise TableAlreadyExistsError(".".join(identifier))
        request = CreateTableRequest.model_validate({"location": None, **given})
        assert request.stage_create and request.partition_spec is not None
        return self._shown(
            self._catalog._create_staged_table(
                identifier, request.table_schema, request.location, request.partition_spec
            )
        )

    def _shown(self, table: Any) -> dict[str, Any]:
        return {
            "metadata-location": table.metadata_location,
            "metadata": json.loads(table.metadata.model_dump_json()),
            "config": {},
        }
