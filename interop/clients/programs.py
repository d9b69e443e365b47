"""The clients of the matrix: where their programs are, and how each is run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
INSTALLED: Final = Path(os.environ.get("TEST_CLIENTS", HERE.parents[1] / ".venv" / "clients"))
"""The folder that `make clients` fills with built programs and packages."""

JAVA_OPTIONS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class Missing(Exception):
    """The client is not installed; the text says what is missing."""


class Client(NamedTuple):
    """A column of the matrix.

    Attributes:
        command: Returns the program's command; the scenario is appended. Raises Missing.
    """

    name: str
    language: str
    command: Callable[[], list[str]]


def _python(folder: str, package: str) -> Client:
    def command() -> list[str]:
        if package not in sys.modules and find_spec(package) is None:  # kombu has no __spec__ once it is imported
            raise Missing(f"the Python package {package}")
        return [sys.executable, "-P", "-W", "ignore", str(HERE / folder / "program.py")]

    return Client(folder, "Python", command)


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise Missing(f"the program {program}")
    return path


def _installed(name: str) -> Path:
    path = INSTALLED / name
    if not path.exists():
        raise Missing(f"{path}: make clients")
    return path


def _with_library(program: str, option: str, code: str, library: str) -> str:
    """Return the path of an interpreter that can load the library. Cost: some 0.2 s."""
    path = _found(program)
    if subprocess.run([path, option, code], capture_output=True, check=False).returncode:
        raise Missing(f"{library}: make clients, as root on Debian")
    return path


def _ruby() -> list[str]:
    path = _with_library("ruby", "-e", "require 'bunny'", "the gem bunny")
    return [path, "-W0", str(HERE / "bunny" / "program.rb")]


def _amqp_tools() -> list[str]:
    _found("amqp-publish")
    return [_found("bash"), str(HERE / "amqp-tools" / "program.sh")]


def _perl() -> list[str]:
    path = _with_library("perl", "-e", "use AnyEvent::RabbitMQ", "Perl's AnyEvent::RabbitMQ")
    return [path, str(HERE / "anyevent-rabbitmq" / "program.pl")]


def _php(name: str, code: str) -> Client:
    def command() -> list[str]:
        path = _with_library("php", "-r", code, f"PHP's package {name}")
        return [path, "-d", "display_errors=stderr", str(HERE / name / "program.php")]

    return Client(name, "PHP", command)


def _node(package: str) -> Client:
    def command() -> list[str]:
        _installed(f"node/node_modules/{package}/package.json")
        return [_found("node"), str(HERE / package / "program.mjs")]

    return Client(package, "JavaScript", command)


def _java(name: str, folder: str, program: str, *options: str) -> Client:
    def command() -> list[str]:
        jars = _installed(folder)
        return [
            _found("java"),
            *JAVA_OPTIONS,
            *options,
            "-cp",
            f"{jars}/*:{_installed(f'{folder}/{program}.class').parent}",
            program,
        ]

    return Client(name, "Java", command)


CLIENTS: Final = (
    _python("pika", "pika"),
    _python("aio-pika", "aio_pika"),
    _python("aiormq", "aiormq"),
    _python("py-amqp", "amqp"),
    _python("kombu", "kombu"),
    _python("amqpstorm", "amqpstorm"),
    Client("amqp091-go", "Go", lambda: [str(_installed("amqp091-go"))]),
    _node("amqplib"),
    _java("java-client", "java", "Program"),
    _java("java-client-nio", "java", "Program", "-Dnio=true"),
    _java("spring-rabbit", "spring", "Spring"),
    Client("bunny", "Ruby", _ruby),
    _php("php-amqplib", "require 'PhpAmqpLib/autoload.php';"),
    _php("php-amqp", "exit((int) !extension_loaded('amqp'));"),
    Client("rabbitmq-c", "C", lambda: [str(_installed("rabbitmq-c"))]),
    Client("amqp-tools", "C", _amqp_tools),  # behind rabbitmq-c: no client of another language has it as its partner
    Client("lapin", "Rust", lambda: [str(_installed("lapin"))]),
    Client("amqprs", "Rust", lambda: [str(_installed("amqprs"))]),
    Client("anyevent-rabbitmq", "Perl", _perl),  # between clients that send 42 with 32 bits: it reads no other integer
)
BY_NAME: Final = {each.name: each for each in CLIENTS}
