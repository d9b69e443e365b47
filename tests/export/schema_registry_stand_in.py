"""A local schema registry: Confluent's REST protocol, as far as a reader of bodies needs it."""

from __future__ import annotations

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote


class RegistryStandIn:
    """Schemas by id, and by subject and version.

    Attributes:
        url: its address, with the login if there is one.
        requests: paths that were asked for.
        answers: statuses for the next requests, instead of a true answer; 0 hangs up.
    """

    def __init__(self, login: str = "") -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[tuple[str, int], dict[str, Any]] = {}
        self.requests: list[str] = []
        self.answers: list[int] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, answer = registry._answer(self.path, self.headers.get("Authorization", ""))
                if not status:
                    self.close_connection = True
                    return
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                return

        self._expected = "Basic " + base64.b64encode(login.encode()).decode() if login else ""
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self._thread.start()
        before = quote(login, safe=":") + "@" if login else ""
        self.url = f"http://{before}127.0.0.1:{self.server.server_port}"

    def _answer(self, path: str, login: str) -> tuple[int, Any]:
        self.requests.append(path)
        if self.answers and (status := self.answers.pop(0)) != 200:
            return status, {"error_code": status, "message": "not now"}
        if login != self._expected:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if match := re.fullmatch(r"/schemas/ids/(\d+)", path):
            found = self.schemas.get(int(match[1]))
            return (200, found) if found else (404, {"error_code": 40403, "message": "Schema not found"})
        if match := re.fullmatch(r"/subjects/([^/]+)/versions/(\d+)", path):
            found = self.subjects.get((match[1], int(match[2])))
            return (200, found) if found else (404, {"error_code": 40401, "message": "Subject not found"})
        return 404, b"<html>no such page</html>"

    def add(self, number: int, schema: Any, kind: str = "AVRO", references: list[tuple[str, str, int]] = ()) -> None:
        """Register a schema. references: (name, subject, version)."""
        self.schemas[number] = self._entry(schema, kind, references)

    def add_subject(self, subject: str, version: int, schema: Any, kind: str = "AVRO", references: Any = ()) -> None:
        self.subjects[subject, version] = self._entry(schema, kind, references)

    @staticmethod
    def _entry(schema: Any, kind: str, references: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"schema": schema if isinstance(schema, str) else json.dumps(schema)}
        if kind != "AVRO":
            found["schemaType"] = kind
        if references:
            found["references"] = [{"name": n, "subject": s, "version": v} for n, s, v in references]
        return found

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()
