"""Client of a schema registry that speaks Confluent's REST protocol: Confluent's own, Karapace, Apicurio, Redpanda.

    GET /schemas/ids/<id>                              the schema that a body was written with
    GET /subjects/<subject>/versions/<version>         a schema that another one refers to

A body in the wire format is the byte 0, the schema's id in four bytes, and the encoded record. Schemas never change, so
each is asked for once in a process. An id that the registry does not know is asked for again after a minute.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import ssl
import time
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
ATTEMPTS: Final = 6
BACKOFF_S: Final = 0.5
"""The wait after the first failed attempt. Each further one is twice as long: 15 seconds together."""
SCHEMA_NOT_FOUND: Final = 40403
UNKNOWN_S: Final = 60.0
"""An unknown id is not asked for again so long."""
UNKNOWN_MAX: Final = 10_000
"""So many unknown ids are remembered: a producer can send any number of them."""
ANSWER_BYTES_MAX: Final = 64 << 20
HEADER_BYTES: Final = 5
_AGAIN: Final = frozenset([408, 429, 500, 502, 503, 504])
_REFERENCES_MAX: Final = 1000


class RegistryError(OSError):
    """The registry does not answer, or refuses; the text says why. The export loses nothing: the next run continues."""


class UnknownSchema(ValueError):
    """The registry has no schema with the id of a body, or the body has no id; the text says which."""


class RegisteredSchema(NamedTuple):
    """A schema of the registry.

    Attributes:
        kind: AVRO, PROTOBUF or JSON.
        references: The schemas that it refers to, and theirs, by the name that is used for each; each behind those that
            it needs.
    """

    kind: str
    text: str
    references: dict[str, str]


def schema_id(body: bytes) -> int:
    """Return the id of a body in the wire format. Raises: UnknownSchema."""
    if len(body) < HEADER_BYTES or body[0] != 0:
        raise UnknownSchema("the body does not begin with byte 0 and a schema's id")
    return int.from_bytes(body[1:HEADER_BYTES], "big")


class SchemaRegistry:
    """A schema registry.

    Args:
        url: `http://host:8081` or `https://...`, with `user:password@` for basic authentication. The authorities for
            https are the system's, or those of `SSL_CERT_FILE`.

    Raises: ValueError, if it is no such URL.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:  # its text may have a part of the password
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or port == -1:
            raise ValueError(
                f"expected http://HOST:PORT or https://..., not {shown(url)} (a password with /, ?, # or @ needs %2F, "
                "%3F, %23, %40)"
            )
        self.url = shown(url)
        self._is_tls = parts.scheme == "https"
        self._address = (parts.hostname, port or (443 if self._is_tls else 80))
        self._path = parts.path.rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = "Basic " + base64.b64encode(login).decode()
        self._known: dict[int, RegisteredSchema] = {}
        self._unknown: dict[int, float] = {}  # the time of the answer, the oldest first

    def schema(self, number: int) -> RegisteredSchema:
        """Return the schema with this id. Cost: a request for each schema and each reference, once.

        Raises: UnknownSchema, RegistryError.
        """
        known = self._known.get(number)
        if known is None:
            asked_at = self._unknown.get(number)
            found = None
            if asked_at is None or time.monotonic() - asked_at >= UNKNOWN_S:
                found = self._get(f"/schemas/ids/{number}")
                self._unknown.pop(number, None)
                if found is None:
                    self._add_unknown(number)
            if found is None:
                raise UnknownSchema(f"the schema registry has no schema {number}")
            references: dict[str, str] = {}
            self._add_references(found, references, set())
            kind = str(found.get("schemaType") or "AVRO")
            known = self._known[number] = RegisteredSchema(kind, str(found["schema"]), references)
        return known

    def _add_unknown(self, number: int) -> None:
        if len(self._unknown) >= UNKNOWN_MAX:
            del self._unknown[next(iter(self._unknown))]
        self._unknown[number] = time.monotonic()

    def _add_references(self, schema: dict[str, Any], found: dict[str, str], begun: set[str]) -> None:
        for each in schema.get("references") or []:
            try:
                name, subject, version = str(each["name"]), str(each["subject"]), int(each["version"])
            except (KeyError, TypeError, ValueError):
                raise RegistryError(f"the schema registry {self.url}: a schema has the reference {each!r}") from None
            if name in begun:
                continue
            begun.add(name)
            if len(begun) > _REFERENCES_MAX:
                raise RegistryError(f"the schema registry {self.url}: a schema has over {_REFERENCES_MAX} references")
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
            needed = self._get(path)
            if needed is None:
                raise RegistryError(f"the schema registry {self.url} has no {path}, to which a schema refers")
            self._add_references(needed, found, begun)
            found[name] = str(needed["schema"])

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return the answer; None if the registry does not know the schema. Raises: RegistryError."""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(BACKOFF_S * 2 ** (attempt - 1))
            try:
                status, body = self._ask(path)
            except (OSError, http.client.HTTPException, UnicodeError) as error:  # UnicodeError: of the host or the path
                reason = str(error) or type(error).__name__
                if isinstance(error, ssl.SSLCertVerificationError):
                    break
            else:
                if status == 200:
                    return self._answer(body)
                if status == 404 and _error_code(body) in (SCHEMA_NOT_FOUND, 40401, 40402):
                    return None
                reason = f"it answers {status} to {path}: {body[:200].decode('utf-8', 'replace')}"
                if status not in _AGAIN:
                    break
            logger.warning("the schema registry %s: %s", self.url, reason)
        raise RegistryError(f"the schema registry {self.url}: {reason}")

    def _answer(self, body: bytes) -> dict[str, Any]:
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise RegistryError(f"{self.url} is no schema registry: its answer is not a schema")
        return found

    def _ask(self, path: str) -> tuple[int, bytes]:
        host, port = self._address
        connection: http.client.HTTPConnection
        if self._is_tls:
            connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", self._path + path, headers=self._headers)
            answer = connection.getresponse()
            body = answer.read(ANSWER_BYTES_MAX + 1)
            if len(body) > ANSWER_BYTES_MAX:
                raise RegistryError(f"its answer to {path} has over {ANSWER_BYTES_MAX >> 20} MiB")
            return answer.status, body
        finally:
            connection.close()


@lru_cache(maxsize=4)
def registry_of(url: str) -> SchemaRegistry:
    """Return this process's client for a URL. Raises: ValueError."""
    return SchemaRegistry(url)


def with_password(url: str, password: str) -> str:
    """Return the URL of a registry with this password for its user. Raises: ValueError, whose text has no password."""
    before, separator, host = url.rpartition("@")
    scheme, slashes, user = before.partition("://")
    if not separator or not slashes or not user:
        raise ValueError(f"a password needs a user in the URL: http://USER@HOST:8081, not {shown(url)}")
    if ":" in user:
        raise ValueError("the URL has a password, too")
    return f"{scheme}://{user}:{quote(password, safe='')}@{host}"


def has_password(url: str) -> bool:
    """Return whether the URL has a password, also if it has no scheme."""
    return ":" in url.rpartition("@")[0].rpartition("://")[2]


def shown(url: str) -> str:
    """Return the URL without user and password, also if it has no scheme."""
    before, _, host = url.rpartition("@")
    scheme, separator, _ = before.partition("://")
    return f"{scheme}://{host}" if separator else host


def _error_code(body: bytes) -> object:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found.get("error_code") if isinstance(found, dict) else None
