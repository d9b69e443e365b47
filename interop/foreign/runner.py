"""Runs a suite with amqpd and with RabbitMQ, one after the other on RabbitMQ's own ports, and compares the results."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from amqpd.testing import BrokerProcess
from interop.bench.rabbitmq import RabbitMQ
from interop.clients.brokers import EVERYTHING, RABBITMQ, await_api, call_api

from .recipes import ADDRESSES, NotPrepared, Recipe, Results

AMQP_PORT: Final = 5672
HTTP_PORT: Final = 15672
TIMEOUT_S: Final = 1500.0
"""Time limit for a suite, which is killed then."""

_CLONE_NEWNET: Final = 0x4000_0000


class Outcome(NamedTuple):
    """A finished comparison. sides: name of a broker -> version; results: name of a broker -> what each test did."""

    suite: str
    recipe: Recipe
    sides: dict[str, str]
    results: dict[str, Results]

    def differences(self) -> list[str]:
        """Return the tests that pass with RabbitMQ, and fail or are missing with amqpd."""
        ours = self.results["amqpd"]
        return sorted(
            name
            for name, verdict in self.results.get(RABBITMQ, {}).items()
            if verdict == "passed" and ours.get(name) != "passed"
        )


def enter_namespace() -> bool:
    """Give this process and its children a network of their own, where only 127.0.0.1 exists.

    Returns:
        False without root or the program ip: the suites then use this machine's 127.0.0.1.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        return False
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    return True


def prepare(recipe: Recipe, folder: Path) -> None:
    """Download and build the suite, unless the folder has this version. Raises NotPrepared."""
    stamp = folder / ".prepared"
    if stamp.exists() and stamp.read_text("utf-8") == recipe.origin:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        recipe.prepare(folder)
    except (OSError, ValueError) as error:
        raise NotPrepared(str(error)) from error
    stamp.write_text(recipe.origin, "utf-8")


def run_suite(recipe: Recipe, folder: Path, log: Path) -> Results:
    """Run the suite once and return its results; the log gets what it prints.

    A suite that crashes has results for the tests that ended before.
    """
    (folder / "report.xml").unlink(missing_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            recipe.command(folder),
            cwd=folder / "source",
            env=os.environ | ADDRESSES,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            output.write(f"\nkilled after {TIMEOUT_S:g} s\n".encode())
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return recipe.results(log.read_text("utf-8", errors="replace"), folder)


@contextmanager
def amqpd(folder: Path, compat: str) -> Iterator[str]:
    """Run an amqpd on RabbitMQ's ports. Yields its version."""
    settings: dict[str, object] = {"amqp.port": AMQP_PORT, "http.port": HTTP_PORT, "log.level": "warning"}
    if compat:
        settings["compat"] = compat
    with BrokerProcess(folder, settings=settings) as broker:
        assert broker.ready is not None
        yield broker.ready.version
        broker.stop(60)
        if "Traceback" in broker.stderr:
            raise RuntimeError(f"the broker logged a traceback:\n{broker.stderr[-4000:]}")


@contextmanager
def rabbitmq(folder: Path) -> Iterator[str]:
    """Run a private RabbitMQ on its usual ports. Yields its version."""
    config = f"management.tcp.port = {HTTP_PORT}\nmanagement.tcp.ip = 127.0.0.1\n"
    node = RabbitMQ(folder, ("rabbitmq_management",), config)
    node.port = AMQP_PORT
    try:
        node.start()
        await_api(HTTP_PORT)
        yield node.version.removeprefix("RabbitMQ ")
    finally:
        node.stop()


def add_objects(recipe: Recipe) -> None:
    """Create the vhosts and users that the suite expects. Raises OSError."""
    for name, password in recipe.users:
        call_api(HTTP_PORT, "PUT", f"/api/users/{name}", {"password": password, "tags": "administrator"})
        call_api(HTTP_PORT, "PUT", f"/api/permissions/%2F/{name}", EVERYTHING)
    for name in recipe.vhosts:
        vhost = quote(name, safe="")
        call_api(HTTP_PORT, "PUT", f"/api/vhosts/{vhost}", {})
        call_api(HTTP_PORT, "PUT", f"/api/permissions/{vhost}/guest", EVERYTHING)


def compare(name: str, recipe: Recipe, folder: Path, work: Path, compat: str, beside: bool) -> Outcome:
    """Run a prepared suite with amqpd and, if beside, with RabbitMQ.

    A test that RabbitMQ passes gets a second run of the whole suite with amqpd: on a busy machine a test that
    waits for a while may be late.
    """
    outcome = Outcome(name, recipe, {}, {})
    if beside:
        with rabbitmq(work / "rabbitmq") as version:
            add_objects(recipe)
            outcome.sides[RABBITMQ] = version
            outcome.results[RABBITMQ] = run_suite(recipe, folder, folder / "rabbitmq.log")
    for number in (1, 2):
        with amqpd(work / f"amqpd-{number}", compat) as version:
            add_objects(recipe)
            outcome.sides["amqpd"] = version
            found = run_suite(recipe, folder, folder / f"amqpd-{number}.log")
        passed = {test: verdict for test, verdict in outcome.results.get("amqpd", {}).items() if verdict == "passed"}
        outcome.results["amqpd"] = found | passed
        if not outcome.differences():
            break
    return outcome


def text(outcome: Outcome) -> str:
    """Return a table of the counts, and a line for each test that does not pass with both brokers."""
    lines = [f"{outcome.suite}: {outcome.recipe.origin}"]
    if outcome.recipe.left_out:
        lines.append(f"left out: {outcome.recipe.left_out}")
    lines.append(f"{'broker':<20}{'passed':>8}{'failed':>8}{'skipped':>8}")
    for side, version in outcome.sides.items():
        counts = Counter(outcome.results[side].values())
        numbers = "".join(f"{counts[each]:>8}" for each in ("passed", "failed", "skipped"))
        lines.append(f"{f'{side} {version}':<20}{numbers}")
    names = sorted({name for results in outcome.results.values() for name in results})
    for name in names:
        verdicts = {side: outcome.results[side].get(name, "not run") for side in outcome.sides}
        if "failed" in verdicts.values() or len(set(verdicts.values())) > 1:
            lines.append(f"{name}: " + ", ".join(f"{side} {verdict}" for side, verdict in verdicts.items()))
    if RABBITMQ in outcome.sides:
        lines.append(f"{len(outcome.differences())} tests pass with RabbitMQ and not with amqpd")
    return "\n".join(lines)


def document(outcome: Outcome) -> str:
    """Return the outcome as JSON: date, versions, and every test."""
    content = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "suite": outcome.suite,
        "origin": outcome.recipe.origin,
        "left_out": outcome.recipe.left_out,
        "brokers": outcome.sides,
        "results": outcome.results,
        "differences": outcome.differences(),
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
