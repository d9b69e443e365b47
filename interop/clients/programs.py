"""The clients of the matrix: where their programs are, and how each is run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
INSTALLED: Final = Path(os.environ.get("TEST_CLIENTS", HERE.parents[1] / ".venv" / "clients"))
"""The folder that `make clients` fills with built programs and packages."""

KAFKA: Final = HERE.parent / "kafka"
KAFKA_INSTALLED: Final = Path(os.environ.get("TEST_KAFKA_CLIENTS", HERE.parents[1] / ".venv" / "kafka-clients"))
"""The same of `make kafka-clients`."""

JAVA_OPTIONS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


GROUP: Final = "{group}"
"""Stands for the group of a scenario in the command of a client that has one program for each group."""


class Missing(Exception):
    """The client is not installed; the text says what is missing."""


class Client(NamedTuple):
    """A column of the matrix.

    Attributes:
        command: Returns the program's command without the scenario, for `full_command`. Raises Missing.
        over: The client of this matrix that does its work if it is a wrapper, or that has the same program. CI leaves
            it out.
        optional: It may be missing in CI, which does not install it.
    """

    name: str
    language: str
    command: Callable[[], list[str]]
    over: str = ""
    optional: bool = False


def full_command(command: Sequence[str], group: str, scenario: str) -> list[str]:
    """Return the command that does the scenario: with its group where the client's command names one."""
    return [*(word.replace(GROUP, group) for word in command), scenario]


def _program(folder: str, suffix: str) -> str:
    """Return the path of a client's program: one for all scenarios, or one for each group of scenarios."""
    whole = HERE / folder / f"program.{suffix}"
    return str(whole if whole.exists() else HERE / folder / f"{GROUP}.{suffix}")


def _python(name: str, package: str, program: str | Path = "", *arguments: str, over: str = "") -> Client:
    """Return a client whose programs are in the folder of its name, or elsewhere. They import what is beside them."""

    def command() -> list[str]:
        if package not in sys.modules and find_spec(package) is None:  # kombu has no __spec__ once it is imported
            raise Missing(f"the Python package {package}")
        return [sys.executable, "-W", "ignore", str(program or _program(name, "py")), *arguments]

    return Client(name, "Python", command, over)


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise Missing(f"the program {program}")
    return path


def _installed(name: str, made_by: str = "make clients") -> Path:
    path = INSTALLED / name
    if not path.exists():
        raise Missing(f"{path}: {made_by}")
    return path


def _with_library(program: str, option: str, code: str, library: str) -> str:
    """Return the path of an interpreter that can load the library. Cost: some 0.2 s."""
    path = _found(program)
    if subprocess.run([path, option, code], capture_output=True, check=False).returncode:
        raise Missing(f"{library}: make clients, as root on Debian")
    return path


def _ruby() -> list[str]:
    path = _with_library("ruby", "-e", "require 'bunny'", "the gem bunny")
    return [path, "-W0", _program("bunny", "rb")]


def _amqp_tools() -> list[str]:
    _found("amqp-publish")
    return [_found("bash"), _program("amqp-tools", "sh")]


def _perl() -> list[str]:
    path = _with_library("perl", "-e", "use AnyEvent::RabbitMQ", "Perl's AnyEvent::RabbitMQ")
    return [path, _program("anyevent-rabbitmq", "pl")]


def _php(name: str, code: str, over: str = "") -> Client:
    def command() -> list[str]:
        path = _with_library("php", "-r", code, f"PHP's package {name}")
        return [path, "-d", "display_errors=stderr", _program(name, "php")]

    return Client(name, "PHP", command, over)


def _node(folder: str, package: str = "", over: str = "") -> Client:
    def command() -> list[str]:
        _installed(f"node/node_modules/{package or folder}/package.json")
        return [_found("node"), _program(folder, "mjs")]

    return Client(folder, "JavaScript", command, over)


def _built(name: str, language: str, over: str = "") -> Client:
    return Client(name, language, lambda: [str(_installed(name))], over)


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


def kafka_java(version: str, program: str) -> list[str]:
    """Return the command that runs a class or a source file with these jars: `39`, `43`, `43-streams`, `43-connect`.

    Raises:
        Missing: Java or the jars are not installed.
    """
    jars = KAFKA_INSTALLED / f"java{version}"
    if not any(jars.glob("kafka-clients-*.jar")):
        raise Missing(f"{jars}: make kafka-clients")
    options = ("-Xmx512m", *JAVA_OPTIONS[1:], "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
    return [_found("java"), *options, "-Dlog4j2.StatusLogger.level=OFF", "-cp", f"{jars}/*", program]


def _kafka_installed(name: str) -> str:
    path = KAFKA_INSTALLED / name
    if not path.exists():
        raise Missing(f"{path}: make kafka-clients")
    return str(path)


def _kafkajs() -> list[str]:
    modules = Path(_kafka_installed("kafkajs/node_modules/kafkajs")).parent
    return ["env", f"NODE_PATH={modules}", _found("node"), str(KAFKA / "kafkajs" / "steps.mjs")]


def _python_for(folder: str, program: str) -> Client:
    """Return a client that a Python program drives: a command of another package."""

    def command() -> list[str]:
        _found(program)
        return [sys.executable, "-W", "ignore", _program(folder, "py")]

    return Client(folder, "command", command)


def _unavailable(name: str, language: str, reason: str) -> Client:
    """Return a client that is always missing: no package registry has it."""

    def command() -> list[str]:
        raise Missing(reason)

    return Client(name, language, command, optional=True)


def _rabbitmqadmin_ng() -> list[str]:
    path = os.environ.get("RABBITMQADMIN_NG") or str(_installed("bin/rabbitmqadmin", "make rabbitmqadmin-ng"))
    return ["env", f"RABBITMQADMIN_NG={path}", sys.executable, "-W", "ignore", _program("rabbitmqadmin-ng", "py")]


def _kcat() -> list[str]:
    _found("kcat")
    return [str(KAFKA / "kcat" / "steps.sh")]


PIKA_CALLBACKS: Final = _program("pika-callbacks", "py")

CLIENTS: Final = (
    _python("pika", "pika"),
    _python("pika-select", "pika", PIKA_CALLBACKS, "select"),
    _python("pika-asyncio", "pika", PIKA_CALLBACKS, "asyncio", over="pika-select"),
    _python("aio-pika", "aio_pika"),
    _python("aiormq", "aiormq"),
    _python("py-amqp", "amqp"),
    _python("kombu", "kombu"),
    _python("amqpstorm", "amqpstorm"),
    _built("amqp091-go", "Go"),
    _built("go-rabbitmq", "Go", over="amqp091-go"),
    _built("watermill-amqp", "Go", over="amqp091-go"),
    _node("amqplib"),
    _node("rabbitmq-client"),
    _node("cloudamqp-client", "@cloudamqp/amqp-client"),
    _node("amqp-connection-manager", over="amqplib"),
    _node("rascal", over="amqplib"),
    _node("nestjs-rabbitmq", "@golevelup/nestjs-rabbitmq", over="amqplib"),
    _java("java-client", "java", "Program"),
    _java("java-client-nio", "java", "Program", "-Dnio=true"),
    _java("spring-rabbit", "spring", "Spring"),
    Client("bunny", "Ruby", _ruby),
    _php("php-amqplib", "require 'PhpAmqpLib/autoload.php';"),
    _php("php-amqp", "exit((int) !extension_loaded('amqp'));", over="rabbitmq-c"),
    _built("rabbitmq-c", "C"),
    # After rabbitmq-c, which has the same language: no client has it as its partner.
    Client("amqp-tools", "C", _amqp_tools, over="rabbitmq-c"),
    _built("lapin", "Rust"),
    _built("amqprs", "Rust"),
    # Between clients that send 42 with 32 bits: it reads no other integer.
    Client("anyevent-rabbitmq", "Perl", _perl),
    _unavailable("SimpleAmqpClient", "C++", "no package registry has SimpleAmqpClient"),
)
BY_NAME: Final = {each.name: each for each in CLIENTS}

TASK_FRAMEWORKS: Final = (
    _python("celery", "celery"),
    _python("faststream", "faststream"),
    _python("dramatiq", "dramatiq"),
    _python("taskiq", "taskiq_aio_pika"),
    _python("oslo-messaging", "oslo_messaging")._replace(optional=True),  # some 30 packages
)

STEPS: Final = str(KAFKA / "java" / "Steps.java")
KAFKA_CLIENTS: Final = (
    Client("java39", "Java", lambda: kafka_java("39", STEPS)),
    Client("java43", "Java", lambda: kafka_java("43", STEPS)),
    _python("confluent-kafka", "confluent_kafka", KAFKA / "python" / "confluent.py"),
    _python("kafka-python", "kafka", KAFKA / "python" / "kafka_python.py"),
    _python("aiokafka", "aiokafka", KAFKA / "python" / "aio.py"),
    Client("franz-go", "Go", lambda: [_kafka_installed("franz")]),
    Client("sarama", "Go", lambda: [_kafka_installed("sarama")]),
    Client("kafkajs", "JavaScript", _kafkajs),
    Client("kcat", "C", _kcat),
)

SHARE_PROGRAMS: Final = {"java43": lambda: kafka_java("43", str(KAFKA / "java" / "ShareGroupProgram.java"))}
"""Programs of their own for the step `share`, with the arguments HOST:PORT TOPIC COUNT."""

HTTP_CLIENTS: Final = (
    _python("pyrabbit2", "pyrabbit2"),
    _python_for("rabbitmqadmin", "rabbitmqadmin"),
    Client("rabbitmqadmin-ng", "command", _rabbitmqadmin_ng, optional=True),
    _built("rabbit-hole", "Go"),
    _python_for("prometheus", "promtool"),
)
