"""The stage of a conversation: its vhost and its parties at one broker. Everything received after a step is recorded.

A recording listens until the broker has been silent for a while, because the answer is not known. A comparison listens
until the required lines have arrived and sends a request after the last step, whose answer must be the last. So a
broker is compared in milliseconds.
"""

from __future__ import annotations

import base64
import html
import http.client
import json
import re
import select
import time
from collections.abc import Sequence
from typing import Any, Final, Self
from urllib.parse import quote

from . import writing
from .party import PATIENCE_S, Address, Heard, Party
from .steps import Connect, Conversation, Ctl, Http, Leave, Publish, Say, Step, Wait, wire_publish

ESCAPE: Final = re.compile("\x1b\\[[0-9;]*m|\x1b\\([0B]")
TAB: Final = "\t"
QUIET_MS: Final = 80
DUE_S: Final = 20.0
NO_ANSWER: Final = (
    "basic.ack", "basic.nack", "basic.reject", "basic.publish", "basic.recover-async", "connection.close-ok",
    "channel.close-ok",
)  # fmt: skip

Answers = list[list[str]]
"""The received lines, by step."""


class Stage:
    """number: part of the names of its vhost and its user. slow: factor of a recording's listening time."""

    def __init__(self, address: Address, number: int, *, slow: int = 1) -> None:
        self.address = address
        self.slow = slow
        self.vhost, self.user = f"cmp-v{number}-", f"cmp-u{number}-"
        self.parties: dict[str, Party] = {}

    def __enter__(self) -> Self:
        for verb, path, body in (
            ("DELETE", "/api/vhosts/{v}", None),
            ("PUT", "/api/vhosts/{v}", {}),
            ("PUT", "/api/permissions/{v}/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
        ):
            status, content = self.request("a", verb, path, body)
            assert verb == "DELETE" or status < 300, (verb, path, status, content)
        return self

    def __exit__(self, *_: object) -> None:
        for party in self.parties.values():
            party.close()
        self.request("a", "DELETE", "/api/vhosts/{v}", None)
        self.request("a", "DELETE", "/api/users/{u}", None)

    # -- executing

    def fill(self, found: Any) -> Any:
        """Replace the marks by the names."""
        if isinstance(found, str):
            return found.replace("{v}", self.vhost).replace("{u}", self.user)
        if isinstance(found, dict):
            return {self.fill(name): self.fill(inner) for name, inner in found.items()}
        if type(found) is list:
            return [self.fill(inner) for inner in found]
        return found

    def party(self, name: str) -> Party:
        """Return the party, connected as guest."""
        party = self.parties.get(name)
        if party is None or not party.open:
            party = self.connect(Connect(on=name))
        return party

    def connect(self, step: Connect) -> Party:
        party = self.parties[step.on] = Party(step.on, self.address)
        party.connect(self.fill(step.user), self.fill(step.password), self.fill(step.vhost))
        return party

    def request(self, user: str, verb: str, path: str, body: Any) -> tuple[int, Any]:
        name = "guest" if user == "a" else self.fill(user)
        token = base64.b64encode(f"{name}:{'guest' if user == 'a' else 'secret'}".encode()).decode()
        headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self.address.host, self.address.http_port, timeout=PATIENCE_S)
        try:
            data = None if body is None else json.dumps(self.fill(body))
            connection.request(verb, quote(self.fill(path), safe="/?=&%"), data, headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(content) if content else None
        except ValueError:
            return answer.status, content.decode("utf-8", "replace")

    def do(self, step: Step) -> list[str]:
        """Execute a step. Return the lines that are no frames: HTTP answers, results of connects."""
        if isinstance(step, Say):
            party = self.party(step.on)
            if step.channel and step.method != "channel.open":
                party.channel(step.channel)
            if party.open:
                party.say(step.method, step.channel, **self.fill(step.arguments))
        elif isinstance(step, Publish):
            party = self.party(step.on)
            party.channel(step.channel)
            party.send(wire_publish(self.fill(step.properties), step, self.fill(step.key), self.fill(step.exchange)))
        elif isinstance(step, Http):
            return [shown(step, *self.request(step.on, step.verb, step.path, step.body))]
        elif isinstance(step, Ctl):
            words = self.fill(list(step.words))
            code, out = self.address.tools.run(words, self.fill(step.stdin))
            return [f"{words[0]} exits {code}", *printed(step.show, out, (self.vhost, self.user))]
        elif isinstance(step, Connect):
            return [f"{step.on} is connected"] if self.connect(step).open else []
        elif isinstance(step, Leave):
            self.parties[step.on].close()
        elif isinstance(step, Wait):
            time.sleep(step.ms / 1000)
        return []

    # -- receiving

    def hear(self, deadline: float, quiet_s: float, enough: int) -> list[Heard]:
        """Receive until nothing arrives for `quiet_s` (0: until the deadline), or until there is enough."""
        heard: list[Heard] = []
        until = time.monotonic() + (quiet_s or 1e9)
        while True:
            for party in self.parties.values():
                heard += party.heard
                party.heard = []
            left = min(until, deadline) - time.monotonic()
            if len(heard) >= enough or left <= 0:
                return heard
            reading = [party for party in self.parties.values() if party.open]
            ready = select.select(reading, [], [], left)[0] if reading else time.sleep(left) or []
            for party in ready:
                party.read()
                until = time.monotonic() + (quiet_s or 1e9)

    def lines(self, heard: Sequence[Heard]) -> list[str]:
        """Return the lines by stream: between streams the order is undefined."""
        found: list[str] = []
        for stream in sorted({each.stream for each in heard}):
            found += in_order([each.line for each in heard if each.stream == stream])
        marks = {self.vhost: "{v}", self.user: "{u}"}
        return [writing.normal(line, marks) for line in found]

    def record(self, conversation: Conversation) -> Answers:
        """Run with a broker whose answers are unknown."""
        answers: Answers = []
        for step in conversation.steps:
            if isinstance(step, Http):
                time.sleep(step.late_ms * self.slow / 1000)
            first = self.do(step)
            quiet_s = (QUIET_MS + step.quiet_ms) * self.slow / 1000
            heard: list[Heard] = []
            if isinstance(step, Say) and step.method not in NO_ANSWER and not step.arguments.get("nowait"):
                heard = self.hear(time.monotonic() + PATIENCE_S, 0, 1)
            heard += self.hear(time.monotonic() + PATIENCE_S, quiet_s, 1_000_000)
            answers.append([*[self.lines([Heard("", line)])[0] for line in first], *self.lines(heard)])
        return answers

    def replay(self, conversation: Conversation, due: Answers) -> Answers:
        """Run with a broker that should give these answers."""
        answers: Answers = []
        for step, wanted in zip(conversation.steps, due, strict=True):
            first = self.do(step)
            enough = max(0, len(wanted) - len(first))
            deadline = time.monotonic() + DUE_S
            heard = self.hear(deadline, 0, enough)
            while is_early(step, wanted, heard) and time.monotonic() < deadline:
                time.sleep(0.01)
                self.do(step)
                heard = self.hear(deadline, 0, enough)
            if step.quiet_ms and len(heard) <= enough:
                heard += self.hear(time.monotonic() + step.quiet_ms / 1000, 0, 1_000_000)
            answers.append([*[self.lines([Heard("", line)])[0] for line in first], *self.lines(heard)])
        for party in self.parties.values():
            for channel in sorted(party.channels):
                if party.open:
                    party.say("channel.flow", channel, active=True)
                    party._until("channel.flow-ok")
        answers[-1] += self.lines(self.hear(time.monotonic(), 0, 1_000_000))
        return answers


def is_early(step: Step, wanted: Sequence[str], heard: Sequence[Heard]) -> bool:
    """Return whether a get found no message although one is due: a dead letter or an expiry takes its time."""
    if not isinstance(step, Say) or step.method != "basic.get" or len(wanted) != 1 or len(heard) != 1:
        return False
    return " basic.get-ok " in wanted[0] and " basic.get-empty" in heard[0].line


def in_order(lines: Sequence[str]) -> list[str]:
    """Sort consecutive confirms by delivery tag, since their order is undefined."""
    found: list[str] = []
    run: list[str] = []
    for line in [*lines, ""]:
        if line.split(" ")[1:2] in (["basic.ack"], ["basic.nack"]):
            run.append(line)
            continue
        found += sorted(run, key=lambda each: int(each.rpartition(" ")[2]))
        run = []
        found.append(line)
    return found[:-1]


def shown(step: Http, status: int, content: Any) -> str:
    line = f"http {status}"
    if isinstance(content, dict) and status >= 400:
        reason = html.unescape(f"{content.get('reason')}")  # RabbitMQ escapes some of them
        return f"{line} {' '.join(reason.split())}"
    if step.show is None or content is None:
        return line
    if isinstance(content, list):
        rows = sorted(json.dumps(picked(row, step.show), sort_keys=True) for row in content)
        return f"{line} [{', '.join(rows)}]"
    return f"{line} {json.dumps(picked(content, step.show), sort_keys=True)}"


def printed(show: str, out: str, mine: tuple[str, str]) -> list[str]:
    """Return the part of a tool's output that the conversation records (see `Ctl`). mine: names of its vhost
    and user.
    """
    plain = ESCAPE.sub("", out)
    if show == "keys":
        return sorted(set(keys(json.loads(plain)))) if plain.strip() else []
    lines = [f"  {line.replace(TAB, ' ; ')}" for line in plain.splitlines()]
    if show == "columns":
        return lines[:1]
    if show == "rows":
        return sorted(lines)
    if show == "mine":
        return sorted(line for line in lines if any(name in line for name in mine))
    return lines if show == "text" else []


def keys(found: Any, path: str = "") -> list[str]:
    """Return the paths of JSON; list elements are alike, and a key that is a node's name is marked."""
    if isinstance(found, list):
        return [key for one in found for key in keys(one, f"{path}[]")]
    if not isinstance(found, dict):
        return []
    return [key for name, one in found.items() for key in [f"  {path}.{name}", *keys(one, f"{path}.{name}")]]


def picked(row: Any, show: tuple[str, ...]) -> Any:
    return {name: row[name] for name in show if name in row} if isinstance(row, dict) else row
