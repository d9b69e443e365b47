"""The page's benchmark with a slow broker, and the minimal page it measures for comparison."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any

import pytest

from interop.bench import generator, page, paint
from interop.bench.generator import RunFailed


class CountingClient:
    """Counts the calls of `clear`."""

    count = 0

    def clear(self) -> None:
        self.count += 1


class Process:
    amqp_port = 1
    pid = 1


def slow_generator(capacity: int, error_text: str = "12 messages have not come, 0 confirms") -> Any:
    """A generator with a broker that accepts `capacity` messages a second."""

    def run(_program: Path, _host: str, _port: int, _pid: int, options: list[str]) -> dict[str, float]:
        rate = int(options[options.index("--rate") + 1])
        if rate > capacity:
            raise RunFailed(error_text)
        return {"rate": rate, "cpu_us": 7.5}

    return run


@pytest.mark.parametrize(
    ("capacity", "rate", "cleared"), [(200_000, 100_000, 0), (60_000, 50_000, 1), (13_000, 12_500, 3)]
)
def test_rate_is_lowered_to_what_the_broker_accepts(monkeypatch, capacity: int, rate: int, cleared: int) -> None:
    monkeypatch.setattr(generator, "run", slow_generator(capacity))
    client = CountingClient()
    assert page._message_us(Path("amqpload"), Process(), client, 1.0) == (rate, 7.5)  # type: ignore[arg-type]
    assert client.count == cleared


def test_rate_that_was_not_reached_does_not_count(monkeypatch) -> None:
    runs = iter([(33_707, 1.0), (9330, 1.0), (80_000, 1.0), (50_000, 5.0), (49_900, 4.0), (30_000, 1.0)])

    def run(*_: Any) -> dict[str, float]:
        return dict(zip(("rate", "cpu_us"), next(runs), strict=True))

    monkeypatch.setattr(generator, "run", run)
    assert page._message_us(Path("amqpload"), Process(), CountingClient(), 1.0) == (50_000, 4.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("error_text", ["9 messages have not come, 0 confirms", "connection refused"])
def test_failure_at_every_rate_is_raised(monkeypatch, error_text: str) -> None:
    monkeypatch.setattr(generator, "run", slow_generator(1000, error_text))
    with pytest.raises(RunFailed, match="does not take 10,000" if "come" in error_text else error_text):
        page._message_us(Path("amqpload"), Process(), CountingClient(), 1.0)  # type: ignore[arg-type]


def test_minimal_page_is_html_a_script_and_a_figure() -> None:
    with paint.least() as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        found = {}
        for path in ("/", "/least.js", "/figure", "/favicon.ico"):
            connection.request("GET", path)
            answer = connection.getresponse()
            found[path] = (answer.status, answer.headers["Content-Type"], answer.read().decode())
        connection.close()
    assert found["/"][:2] == (200, "text/html")
    assert 'src="/least.js"' in found["/"][2]
    assert found["/least.js"][1] == "text/javascript"
    assert 'fetch("/figure")' in found["/least.js"][2]
    assert found["/figure"] == (200, "application/json", '{"figure": 5}')
    assert found["/favicon.ico"][0] == 404
