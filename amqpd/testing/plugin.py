"""The pytest plugin: a broker for the test run, a vhost and a recorder for each test.

With pytest-xdist each worker has its own broker. The report of a failed test has the standard error of the broker that
it used, if that is a process.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack

import pytest

from amqpd.testing.broker_fixture import BrokerFixture, Vhost
from amqpd.testing.control import NotRunning
from amqpd.testing.process import BrokerProcess
from amqpd.testing.recorder import Recorder
from amqpd.testing.thread import BrokerThread

MODES = ("process", "process-memory", "thread", "thread-memory")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the ini value for the kind of broker."""
    text = f"broker of the fixtures of amqpd: {', '.join(MODES)}"
    parser.addini("amqpd_mode", f"{text} (default: process)", default="process")
    parser.getgroup("amqpd").addoption("--amqpd-mode", choices=MODES, default=None, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest import the broker's modules as they are.

    pytest rewrites the assertions of a plugin's whole package. For a broker that takes 0.7 s of processor time, and
    again in each run that keeps no bytecode.
    """
    getattr(config.pluginmanager.rewrite_hook, "_must_rewrite", set()).discard("amqpd")


def _mode(config: pytest.Config) -> str:
    mode = config.getoption("amqpd_mode") or config.getini("amqpd_mode")
    if mode not in MODES:
        raise pytest.UsageError(f"amqpd_mode must be one of {', '.join(MODES)}, not {mode!r}")
    return str(mode)


@pytest.fixture(scope="session")
def amqpd_broker(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Generator[BrokerFixture, None, None]:
    """A broker for this test session, or for this worker of pytest-xdist, on free ports.

    It is a process unless the option `--amqpd-mode` or the ini value `amqpd_mode` says otherwise. A test may stop it
    and start it again. Tests that need other settings make a broker themselves.
    """
    kind, _, where = _mode(pytestconfig).partition("-")
    data_dir = tmp_path_factory.mktemp("amqpd")
    memory = where == "memory"
    broker: BrokerFixture
    if kind == "thread":
        broker = BrokerThread(data_dir, memory=memory)
    else:
        broker = BrokerProcess(data_dir, memory=memory, control=True)
    with broker:
        yield broker


@pytest.fixture(scope="session")
def amqpd_url(amqpd_broker: BrokerFixture) -> str:
    """AMQP URL of the session's broker, vhost `/`, user guest. Tests share its queues."""
    return amqpd_broker.url


@pytest.fixture
def amqpd_vhost(amqpd_broker: BrokerFixture) -> Generator[Vhost, None, None]:
    """An empty vhost of the session's broker for this test only. Cost: some milliseconds on disk, 1 ms in memory.

    It starts a broker that an earlier test has stopped. One that has ended by itself fails the test.
    """
    with ExitStack() as stack:
        try:
            vhost = stack.enter_context(amqpd_broker.vhost())
        except NotRunning:
            vhost = stack.enter_context(amqpd_broker.start().vhost())
        yield vhost


@pytest.fixture
def amqpd_recorder(amqpd_broker: BrokerFixture, amqpd_vhost: Vhost) -> Recorder:
    """The messages of `amqpd_vhost`, from the beginning of the test."""
    return amqpd_broker.record(amqpd_vhost)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the broker's standard error to the report of a failed test that used `amqpd_broker`."""
    report = yield
    if report.failed:
        broker = getattr(item, "funcargs", {}).get("amqpd_broker")
        if isinstance(broker, BrokerProcess) and broker.stderr:
            report.sections.append(("amqpd standard error", broker.stderr))
    return report
