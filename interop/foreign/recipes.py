"""The test suites of client libraries: where the released sources are, how a suite is built, and how it is run.

Everything is downloaded by the registry's own client into a folder of the run, never into the repository.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

Results = dict[str, str]
"""Name of a test -> passed, failed or skipped."""

ADDRESSES: Final = {
    "AMQP_URL": "amqp://guest:guest@127.0.0.1:5672/",
    "AMQP_ADDR": "amqp://guest:guest@127.0.0.1:5672/%2f",
    "AMQP_URI": "amqp://guest:guest@127.0.0.1:5672/%2F",
    "AMQP_HOST": "127.0.0.1",
    "AMQP_USERNAME": "guest",
    "AMQP_PASSWORD": "guest",
    "AMQP_HTTP_URL": "http://127.0.0.1:15672",
    "RABBITMQ_HOST": "127.0.0.1",
    "RABBITMQ_5672_TCP": "5672",
}
"""How suites learn where the broker is. Others know that it is at 127.0.0.1, 5672 and 15672."""

GO_LINE: Final = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)
GINKGO_NAME: Final = re.compile(r"^(\S.*)\n  (\S.*)\n  /\S+:\d+$", re.MULTILINE)
GINKGO_SIGN: Final = re.compile(r"^(• Failure|• Panic|•|S|P)(?= \[|!? in |$)", re.MULTILINE)
GINKGO_WORDS: Final = {"•": "passed", "• Failure": "failed", "• Panic": "failed", "S": "skipped", "P": "skipped"}
RUST_BINARY: Final = re.compile(r"^\s*Running (?:unittests )?(\S+)")
RUST_LINE: Final = re.compile(r"^test (.+?)(?: - should panic)? \.\.\. (?:.*?)\b(ok|FAILED|ignored)\b")
WORDS: Final = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"} | {
    "ok": "passed",
    "FAILED": "failed",
    "ignored": "skipped",
}


class NotPrepared(Exception):
    """A suite could not be downloaded or built; the text says why."""


class Recipe(NamedTuple):
    """A suite.

    Attributes:
        origin: The package with its version, and the registry.
        prepare: Downloads and builds it into an empty folder. Raises NotPrepared. Cost: seconds to minutes.
        command: Returns the command, to be run in the folder `source` of this folder.
        results: Returns what each test did, from the output and the folder.
        vhosts, users: What the suite expects in the broker beside guest; users are administrators.
        left_out: What is not run, and why.
    """

    origin: str
    prepare: Callable[[Path], None]
    command: Callable[[Path], list[str]]
    results: Callable[[str, Path], Results]
    vhosts: tuple[str, ...] = ()
    users: tuple[tuple[str, str], ...] = ()
    left_out: str = ""


def do(command: list[str], folder: Path) -> str:
    """Run one step in the folder and return its output. Raises NotPrepared with the end of what it printed."""
    if shutil.which(command[0]) is None:
        raise NotPrepared(f"the program {command[0]} is not installed")
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise NotPrepared(f"{' '.join(command)}: {(ended.stderr + ended.stdout).strip()[-1500:]}")
    return ended.stdout


def junit_results(path: Path) -> Results:
    """Return the results of a JUnit report; no report, because the suite crashed: none."""
    if not path.exists():
        return {}
    found = {}
    for case in ET.parse(path).iter("testcase"):
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        kinds = {child.tag for child in case}
        failed = kinds & {"failure", "error"} or case.get("status") in ("failed", "panicked", "timedout")
        found[name] = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
    return found


def go_results(output: str, _folder: Path) -> Results:
    """Return the results in the output of `go test -v`."""
    return {name: WORDS[word] for word, name in GO_LINE.findall(output)}


def ginkgo_results(output: str, _folder: Path) -> Results:
    """Return the results in the output of Ginkgo 1 with -ginkgo.v: a name of two lines, then a line with a sign."""
    found: Results = {}
    for part in re.split(r"^-{30}$", output, flags=re.MULTILINE):
        named, signed = GINKGO_NAME.search(part), GINKGO_SIGN.search(part)
        if named and signed:
            found[f"{named[1].strip()}: {named[2]}"] = GINKGO_WORDS[signed[1]]
    return found


def rust_results(output: str, _folder: Path) -> Results:
    """Return the results in the output of `cargo test`: the name of a test follows that of its file."""
    found: Results = {}
    binary = ""
    for line in output.splitlines():
        if matched := RUST_BINARY.match(line):
            binary = Path(matched[1]).stem
        elif matched := RUST_LINE.match(line):
            found[f"{binary}::{matched[1]}"] = WORDS[matched[2]]
    return found


def _python(package: str, version: str, packages: str, arguments: str, left_out: str = "") -> Recipe:
    def prepare(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        do([*pip, "download", "--no-deps", "--no-binary", ":all:", f"{package}=={version}"], folder)
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
        (folder / archive.name.removesuffix(".tar.gz")).rename(folder / "source")
        do([sys.executable, "-m", "venv", "venv"], folder)
        tools = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        do([*tools, "install", "./source", "pytest", "pytest-timeout", *packages.split()], folder)

    def command(folder: Path) -> list[str]:
        report = folder / "report.xml"
        return [
            str(folder / "venv" / "bin" / "python"),
            *("-m", "pytest", "-q", "--timeout=120", f"--junitxml={report}", *arguments.split()),
        ]

    def results(_output: str, folder: Path) -> Results:
        return junit_results(folder / "report.xml")

    return Recipe(f"{package} {version}, PyPI's sdist", prepare, command, results, left_out=left_out)


def _go(module: str, version: str, *options: str, ginkgo: bool = False, **more: tuple[str, ...] | str) -> Recipe:
    def prepare(folder: Path) -> None:
        (folder / "go.mod").write_text("module foreign\n", "ascii")
        found = json.loads(do(["go", "mod", "download", "-json", f"{module}@v{version}"], folder))
        shutil.copytree(found["Dir"], folder / "source", copy_function=shutil.copyfile)
        for each in [folder / "source", *(folder / "source").rglob("*")]:
            each.chmod(0o755 if each.is_dir() else 0o644)  # Go's own copy is read-only
        do(["go", "test", "-c", "-o", str(folder / "suite"), *options, "."], folder / "source")

    def command(folder: Path) -> list[str]:
        more = ["-ginkgo.v", "-ginkgo.noColor"] if ginkgo else []
        return [str(folder / "suite"), "-test.v", "-test.timeout=20m", *more]

    results = ginkgo_results if ginkgo else go_results
    return Recipe(f"{module} {version}, the Go module proxy", prepare, command, results, **more)  # type: ignore[arg-type]


def _cargo(crate: str, version: str, *options: str, **more: tuple[tuple[str, str], ...] | str) -> Recipe:
    def prepare(folder: Path) -> None:
        (folder / "src").mkdir()
        (folder / "src" / "lib.rs").touch()
        head = '[package]\nname = "foreign"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\nexclude = ["source"]\n'
        (folder / "Cargo.toml").write_text(f'{head}[dependencies]\n{crate} = "={version}"\n', "ascii")
        described = json.loads(do(["cargo", "metadata", "--quiet", "--format-version", "1"], folder))
        (manifest,) = (each["manifest_path"] for each in described["packages"] if each["name"] == crate)
        shutil.copytree(Path(manifest).parent, folder / "source")
        do(["cargo", "test", "--quiet", "--no-run", "--tests", *options], folder / "source")

    def command(_folder: Path) -> list[str]:
        return ["cargo", "test", "--offline", "--no-fail-fast", "--tests", *options, "--", "--test-threads=1"]

    return Recipe(f"{crate} {version}, crates.io", prepare, command, rust_results, **more)  # type: ignore[arg-type]


RECIPES: Final = {
    "py-amqp": _python(
        "amqp", "5.4.2", "pytest-rerunfailures", "t/integration/test_rmq.py -k (not(tls))", "TLS: the sdist has no keys"
    ),
    "kombu": _python(
        "kombu",
        "5.7.0",
        "pytest-rerunfailures amqp",
        "t/integration/test_py_amqp.py",
        "transports other than py-amqp: they are for other brokers",
    ),
    "amqpstorm": _python(
        "amqpstorm",
        "3.1.4",
        "requests",
        "amqpstorm/tests/functional --ignore amqpstorm/tests/functional/ssl",
        "TLS: the sdist has no keys",
    ),
    "amqp091-go": _go("github.com/rabbitmq/amqp091-go", "1.16.0", "-tags=integration"),
    "rabbit-hole": _go(
        "github.com/michaelklishin/rabbit-hole/v2",
        "2.12.0",
        ginkgo=True,
        vhosts=("rabbit/hole",),
        left_out="federation and shovels: their tests fail with both, as RabbitMQ runs without these plugins",
    ),
    "lapin": _cargo("lapin", "4.12.3"),
    "amqprs": _cargo(
        "amqprs", "2.1.5", users=(("user", "bitnami"),), left_out="TLS: the crate has it only with another feature"
    ),
}

UNAVAILABLE: Final = {
    "java-client": "Maven Central has no test jar and no test sources of com.rabbitmq:amqp-client",
    "spring-rabbit": "Maven Central has no test jar and no test sources of org.springframework.amqp:spring-rabbit",
    "bunny": "the gem has lib/ only, not the specs",
    "php-amqplib": "Packagist's archives leave out tests/",
    "terraform": "the tests of the provider, a Go module, need the program terraform, of which Debian has no package",
}
"""Suites that are not in a registry's released sources, or need a program that is not in one."""
