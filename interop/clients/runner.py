"""Runs the programs of clients: one process a cell of the matrix."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

from .brokers import PEERS, Certificates, Node, Side
from .programs import INSTALLED, Client, Missing, full_command
from .scenarios import Scenario
from .tables import Table

TIMEOUT_S: Final = 180.0
"""Time limit for one program: a program that hangs must not stop the run."""

SAME_NAMES: Final = ("tls", "missing", "heartbeat")
"""Scenarios that send the message of `connect` through the same queue."""

Verdict = Literal["pass", "fail", "not offered", "missing"]


class Cell(NamedTuple):
    """The result of one client in one scenario on one side.

    Attributes:
        text: Why it is not a pass: the reason or the error.
        output: Everything that the failed program printed.
    """

    client: str
    scenario: str
    side: str
    verdict: Verdict
    text: str = ""
    output: str = ""
    seconds: float = 0.0


class Run(NamedTuple):
    """The end of one program."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Return the lines of standard output without `ready`, which is for the runner."""
        return [line for line in map(str.rstrip, self.out.splitlines()) if line and line != "ready"]

    @property
    def last_line(self) -> str:
        """Return the last line of standard output."""
        return self.lines[-1] if self.lines else ""

    @property
    def error(self) -> str:
        """Return the last line that names an error, or else the last line."""
        lines = [line.strip() for line in (self.out + "\n" + self.err).splitlines() if line.strip()]
        errors = [line for line in lines if "rror" in line] or lines or [f"exit code {self.code}"]
        return errors[-1][:300]


def environment(node: Node, scenario: str, vhost: str, files: Certificates) -> dict[str, str]:
    """Return the variables of a program: AMQP_URL, and the files of TLS where the scenario uses it."""
    tls = scenario in ("tls", "client-certificate")
    password = "wrong" if scenario in ("bad-password", "refused") else "guest"
    vhost = "nosuch" if scenario == "bad-vhost" else vhost
    scheme, port = ("amqps", node.tls_port) if tls else ("amqp", node.amqp_port)
    url = f"{scheme}://guest:{password}@localhost:{port}/{quote(vhost, safe='')}"
    http_url = f"http://guest:{password}@127.0.0.1:{node.http_port}"
    metrics_url = f"http://127.0.0.1:{node.metrics_port}/metrics"
    added = {"AMQP_URL": url, "HTTP_URL": http_url, "METRICS_URL": metrics_url, "NODE_PATH": str(INSTALLED / "node")}
    if tls:
        added["CA_FILE"] = str(files.ca)
    if scenario == "client-certificate":
        added |= {"CERT_FILE": str(files.client), "KEY_FILE": str(files.client)}
    return os.environ | added


def run(command: Sequence[str], variables: dict[str, str], on_ready: Callable[[], None] = lambda: None) -> Run:
    """Run a program to its end. on_ready: called at its line `ready`, and at its end."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=variables,
        text=True,
        errors="backslashreplace",
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    timer = threading.Timer(TIMEOUT_S, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    errors: list[str] = []
    reader = threading.Thread(target=lambda stream: errors.append(stream.read()), args=(process.stderr,))
    reader.start()
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.strip() == "ready":
            on_ready()
    reader.join()
    code = process.wait()
    timer.cancel()
    process.stdout.close()
    process.stderr.close()
    on_ready()
    if code == -signal.SIGKILL:
        errors.append(f"\nkilled after {TIMEOUT_S:g} s")
    return Run(code, "".join(lines), "".join(errors))


def installed(clients: Iterable[Client]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the command of each client that is installed, and why the others are missing."""
    commands: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    for each in clients:
        try:
            commands[each.name] = each.command()
        except Missing as reason:
            missing[each.name] = str(reason)
    return commands, missing


def missing_cells(reasons: Mapping[str, str], scenarios: Iterable[Scenario], side: str) -> list[Cell]:
    """Return the cells of clients that could not be tried. reasons: name of a client -> why."""
    return [Cell(name, each.name, side, "missing", why) for each in scenarios for name, why in reasons.items()]


class Runner:
    """Runs all cells of one side.

    Args:
        table: Its clients run. Those that are not installed are missing.
        jobs: Programs at once.

    Attributes:
        commands: Command of each client that is installed.
        missing: Why the others are not.
    """

    def __init__(self, side: Side, files: Certificates, table: Table, jobs: int) -> None:
        self._side = side
        self._files = files
        self._jobs = jobs
        self._own_vhosts = table.own_vhosts
        self.commands, self.missing = installed(table.clients)
        self.languages = {each.name: each.language for each in table.clients}

    def cells(self, scenarios: Iterable[Scenario]) -> list[Cell]:
        """Run the scenarios of all clients and return the cells. Cost: minutes of two cores for the whole catalogue."""
        chosen = list(scenarios)
        cells = missing_cells(self.missing, chosen, self._side.name)
        for name in self.commands:
            self._side.second.add_vhost(name)
            for vhost in {self.vhost(name, each.name) for each in chosen}:
                self._side.node.add_vhost(vhost)
        if self._side.name in PEERS:
            for each in chosen:
                if each.not_in_peer:
                    cells += missing_cells(dict.fromkeys(self.commands, each.not_in_peer), [each], self._side.name)
            chosen = [each for each in chosen if not each.not_in_peer]
        alone = [(name, each) for each in chosen if not each.together for name in self.commands]
        with ThreadPoolExecutor(self._jobs) as pool:
            cells += pool.map(lambda one: self._repeated(*one), alone)
        for each in chosen:
            if each.together:
                cells += self._together(each)
        return cells

    def vhost(self, client: str, scenario: str) -> str:
        """Return the client's vhost. Scenarios that share names with another one have their own: they run at once."""
        return f"{client}.{scenario}" if self._own_vhosts or scenario in SAME_NAMES else client

    def _repeated(self, client: str, scenario: Scenario) -> Cell:
        for _ in range(scenario.tries):
            cell = self._cell(client, scenario)
            if cell.verdict != "fail":
                break
        return cell

    def _cell(self, client: str, scenario: Scenario, on_ready: Callable[[], None] = lambda: None) -> Cell:
        began = time.monotonic()
        if scenario.name == "cross-language":
            ended = self._crossing(client, scenario.group)
        else:
            second = scenario.together or scenario.name == "client-certificate"
            node = self._side.second if second else self._side.node
            vhost = client if second else self.vhost(client, scenario.name)
            ended = self._run(client, scenario.group, scenario.name, node, vhost, on_ready)
        took = time.monotonic() - began
        line = ended.last_line
        if ended.code == 0 and scenario.accepts(ended.lines):
            return Cell(client, scenario.name, self._side.name, "pass", seconds=took)
        if ended.code == 0 and line.startswith("not offered: "):
            return Cell(
                client, scenario.name, self._side.name, "not offered", line.removeprefix("not offered: "), "", took
            )
        return Cell(client, scenario.name, self._side.name, "fail", ended.error, ended.out + ended.err, took)

    def _run(
        self,
        client: str,
        group: str,
        scenario: str,
        node: Node,
        vhost: str,
        on_ready: Callable[[], None] = lambda: None,
    ) -> Run:
        command = full_command(self.commands[client], group, scenario)
        return run(command, environment(node, scenario, vhost, self._files), on_ready)

    def partner(self, client: str) -> str | None:
        """Return the next client of another language; None if there is none."""
        names = list(self.commands)
        place = names.index(client)
        others = [name for name in names[place:] + names[:place] if self.languages[name] != self.languages[client]]
        return others[0] if others else None

    def _crossing(self, client: str, group: str) -> Run:
        partner = self.partner(client)
        if partner is None:
            return Run(0, "not offered: no client of another language is installed", "")
        for writer, reader in ((client, partner), (partner, client)):
            for name, step in ((writer, "write"), (reader, "read")):
                ended = self._run(name, group, step, self._side.node, client)
                if ended.code or ended.last_line != "pass":
                    return Run(ended.code, ended.out, f"{ended.err}\n{name} {step}: {ended.error}")
        return ended

    def _together(self, scenario: Scenario) -> list[Cell]:
        node = self._side.second
        ready = {name: threading.Event() for name in self.commands}
        if scenario.name == "blocked":
            node.set_memory_limit("0.000000001")
        with ThreadPoolExecutor(len(ready) or 1) as pool:
            cells = []
            for name, event in ready.items():
                cells.append(pool.submit(self._cell, name, scenario, event.set))
                cells[-1].add_done_callback(lambda _, event=event: event.set())  # a program that did not start
            for event in ready.values():
                event.wait()
            if scenario.name == "blocked":
                node.set_memory_limit("0.4")
            else:
                node.kill_and_start()
        return [each.result() for each in cells]


def versions(commands: dict[str, list[str]], group: str) -> dict[str, str]:
    """Return the version that each client's program prints. Raises RuntimeError if one prints none.

    group: Any group of the table; all programs of a client print its version.
    """
    found = {}
    for name, command in commands.items():
        ended = run(full_command(command, group, "version"), os.environ | {"NODE_PATH": str(INSTALLED / "node")})
        if ended.code or not ended.last_line:
            raise RuntimeError(f"{name} does not start: {ended.out}{ended.err}")
        found[name] = ended.last_line
    return found


def differences(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells of amqpd that are worse than the peer's: a failure that is none there, or a pass that is only
    there.
    """
    by_place = {(each.client, each.scenario, each.side): each for each in cells}
    found = []
    for each in by_place.values():
        peers = [by_place.get((each.client, each.scenario, peer)) for peer in PEERS]
        theirs = next((peer.verdict for peer in peers if peer), "missing")
        if each.side not in PEERS and (
            (each.verdict == "fail" and theirs != "fail") or (each.verdict == "not offered" and theirs == "pass")
        ):
            found.append(each)
    return found


def errors(cells: Iterable[Cell]) -> list[Cell]:
    """Return the differences, and amqpd's failures in which the peer fails, too: errors of a program."""
    found = list(cells)
    worse = differences(found)
    return worse + [each for each in found if each.side not in PEERS and each.verdict == "fail" and each not in worse]
