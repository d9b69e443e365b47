"""Run one page from top to bottom: each block as its language requires, with its own broker and folder.

A `Player` is independent of pytest; a failure is a `WrongBlock` with page, line and output.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pages import Block, Page, PageMark

from amqpd.testing import BrokerProcess

TIMEOUT_S: Final = 180
PROGRAMS: Final = {
    "amqpd": "from amqpd.__main__ import main; sys.exit(main())",
    "amqpctl": "from amqpd.cli.main import main; sys.exit(main())",
    "pytest": "import pytest; sys.exit(pytest.console_main())",
    "celery": "from celery.__main__ import main; sys.exit(main())",
    "faststream": "from faststream.cli import cli; sys.exit(cli())",
    "django-admin": "from django.core.management import execute_from_command_line as main; sys.exit(main())",
}
"""Programs on the path of a page's commands: those of this environment, installed or a checkout."""


class WrongBlock(AssertionError):
    """A block that failed, or whose output differs from the page."""


class Player:
    """Runs a page in `folder`. As a context manager it starts and stops the broker, and stops background processes."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self.folder = folder
        settings = dict(value.split("=", 1) for value in page.all_of("broker"))
        self.broker = BrokerProcess(folder / "amqpd-data", settings=settings)
        self.skipped: list[tuple[Block, str]] = []
        self.run_elsewhere: list[tuple[Block, str]] = []
        self._background: list[subprocess.Popen[bytes]] = []
        self._output = ""
        self._answer: Any = None
        self._missing = ""
        self._scripts = 0
        self._ports: dict[str, int] = {}

    def __enter__(self) -> Self:
        make_programs(self.folder / ".programs")
        self.broker.start()
        assert self.broker.ready is not None
        known = {
            "amqp": "5672",
            "http": "15672",
            "amqps": "5671",
            "https": "15671",
            "prometheus": "15692",
            "kafka": "9092",
        }
        self._ports = {known[name]: port for name, (_, port) in self.broker.ready.listeners.items() if name in known}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._background:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._background:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.broker.close()

    def play(self) -> None:
        """Run all blocks. Raises: WrongBlock for the first block that differs from the page."""
        for part in self.page.parts:
            if isinstance(part, PageMark):
                if part.name == "needs":
                    self._missing = missing(part.value)
                continue
            reason = part.marks.get("not run") or self._missing
            if "run by" in part.marks:
                self.run_elsewhere.append((part, part.marks["run by"]))
            elif reason:
                self.skipped.append((part, reason))
            else:
                self._run_block(part)

    def unused(self) -> list[str]:
        """Return the files that the page writes and no later block uses: `docs/a.md:12 b.py`.

        A block uses a file if it names it, or imports it, which leaves byte code that is not older.
        """
        found = []
        for position, block in enumerate(self.page.blocks):
            name = block.marks.get("file") or block.marks.get("append")
            if name is None or "run by" in block.marks or "not run" in block.marks:
                continue
            path = self.folder / name
            later = "".join(each.text for each in self.page.blocks[position + 1 :] if each.language in ("sh", "python"))
            compiled = [each.stat().st_mtime for each in path.parent.glob(f"__pycache__/{path.stem}.*.pyc")]
            imported = path.suffix == ".py" and max(compiled, default=0.0) >= path.stat().st_mtime
            if not imported and not re.search(rf"(?<![\w.-]){re.escape(name)}\b", later):
                found.append(f"{block.where} {name}")
        return found

    def _run_block(self, block: Block) -> None:
        if before := block.marks.get("before"):
            self._run(block, ["bash", "-euo", "pipefail", "-c", before], 0)
        if name := block.marks.get("file") or block.marks.get("append"):
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a" if "append" in block.marks else "w", encoding="utf-8") as file:
                file.write(self._with_real_ports(block.text))
            if path.suffix == ".py":
                compile(block.text, block.where, "exec")
        else:
            runners: dict[str, Callable[[Block], None]] = {
                "python": self._python,
                "sh": self._sh,
                "toml": self._settings,
                "ini": self._settings,
                "http": self._http,
                "sql": self._sql,
                "json": self._json,
                "yaml": self._yaml,
                "text": self._text,
                "java": self._file_only,
                "xml": self._file_only,
                "go": self._file_only,
                "javascript": self._file_only,
            }
            runners[block.language](block)

    # -- languages

    def _python(self, block: Block) -> None:
        self._scripts += 1
        script = self.folder / f"example_{self._scripts}.py"
        script.write_text(self._with_real_ports(block.text), "utf-8")
        self._output = self._run(block, [sys.executable, "-P", str(script)], int(block.marks.get("exit", "0")))

    def _sh(self, block: Block) -> None:
        command = ["bash", "-euo", "pipefail", "-c", self._with_real_ports(block.text)]
        if "background" in block.marks:
            with (self.folder / f"background-{len(self._background)}.log").open("wb") as log:
                process = subprocess.Popen(
                    command, cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            self._background.append(process)
        else:
            self._output = self._run(block, command, int(block.marks.get("exit", "0")))

    def _settings(self, block: Block) -> None:
        """Check a settings file outside the page's folder, which may have an amqpd.toml. Files named in it must
        exist.
        """
        suffix = ".toml" if block.language == "toml" else ".conf"
        path = self.folder / f"checked{suffix}"
        path.write_text(block.text, "utf-8")
        command = [str(self.folder / ".programs" / "amqpd"), "--check-config", "--config", str(path)]
        self._output = self._run(block, command, int(block.marks.get("exit", "0")))

    def _http(self, block: Block) -> None:
        line, _, body = block.text.partition("\n")
        method, path = line.split()
        sent = self._with_real_ports(body).strip().encode() or None
        request = urllib.request.Request(f"{self.broker.http_url}{path}", sent, method=method)
        request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            raise WrongBlock(f"{block.where}: {line} -> {error.code} {error.read().decode()}") from None
        self._output = content.decode()
        self._answer = json.loads(content) if content[:1] in (b"{", b"[") else None

    def _sql(self, block: Block) -> None:
        import duckdb

        old_folder = Path.cwd()
        os.chdir(self.folder)
        try:
            found = duckdb.sql(block.text)
            self._output = "\n".join("\t".join(map(str, row)) for row in found.fetchall()) + "\n" if found else ""
        except duckdb.Error as error:
            raise WrongBlock(f"{block.where}: {error}") from None
        finally:
            os.chdir(old_folder)

    def _json(self, block: Block) -> None:
        expected = json.loads(block.text)
        if "answers" in block.marks and (difference := differs(expected, self._answer)):
            raise WrongBlock(f"{block.where}: {difference}")

    def _yaml(self, block: Block) -> None:
        import yaml

        list(yaml.safe_load_all(block.text))

    def _file_only(self, block: Block) -> None:
        raise WrongBlock(f"{block.where}: a block of {block.language} needs the mark `file` or `run by`")

    def _text(self, block: Block) -> None:
        for mark in ("prints", "prints, numbers at least"):
            if mark in block.marks and not agrees(block.text, self._with_page_ports(self._output), mark != "prints"):
                raise WrongBlock(f"{block.where}: the page says\n{block.text}\nbut what was printed is\n{self._output}")

    # -- shared

    def _run(self, block: Block, command: list[str], expected_code: int) -> str:
        try:
            process = subprocess.run(
                command, cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL, capture_output=True,
                text=True, timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            output = f"{error.stdout!r} {error.stderr!r}"
            raise WrongBlock(f"{block.where}: not done after {TIMEOUT_S} s: {output}") from None
        if process.returncode != expected_code:
            background_logs = "".join(
                log.read_text("utf-8", "replace")[-4000:] for log in self.folder.glob("background-*.log")
            )
            output = f"{block.text}\n{process.stdout}{process.stderr}{background_logs}"
            raise WrongBlock(f"{block.where}: exit code {process.returncode}, not {expected_code}\n{output}")
        return process.stdout if expected_code == 0 else process.stdout + process.stderr

    def _environment(self) -> dict[str, str]:
        ours = ("AMQPD_", "RABBITMQ_", "PYTEST_", "PYTHONDONTWRITEBYTECODE")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        path = f"{self.folder / '.programs'}:{Path(sys.executable).parent}:{environ['PATH']}"
        return environ | {
            "PATH": path,
            "PYTHONPATH": os.pathsep.join([str(self.folder), *filter(None, sys.path)]),
            "AMQP_URL": self.broker.url,
            "PYSPARK_PYTHON": sys.executable,
            "HOME": str(self.folder),
            "NO_COLOR": "1",
        }

    def _with_real_ports(self, text: str) -> str:
        """Replace the ports and folders of the page by those of this broker."""
        for known, port in self._ports.items():
            text = re.sub(rf"(?<=[a-z1][:=]){known}\b", str(port), text)
        text = re.sub(r"(?<![\w./])/backups\b", str(self.folder / "backups"), text)
        return re.sub(r"inactivity_timeout=[12]\b", "inactivity_timeout=6", text)

    def _with_page_ports(self, text: str) -> str:
        for known, port in self._ports.items():
            text = re.sub(rf"(?<=[a-z1]:){port}\b", known, text)
        return text.replace(str(self.folder / "backups"), "/backups").replace(str(self.folder), ".")


def missing(need: str) -> str:
    """Return why the blocks that need it cannot be run here; "" if they can."""
    if need != "spark":
        raise ValueError(f"nothing is known of {need}")
    try:
        import pyspark  # noqa: F401
    except ImportError:
        if os.environ.get("TEST_REQUIRE_SPARK"):
            return ""  # and fail
        return "no Spark on this machine (make spark)"
    return ""


def agrees(expected: str, output: str, numbers: bool = False) -> bool:
    """Return whether `said` matches the page, except for white space at the ends of lines and dots, which match any
    text.
    """
    lines = [line.rstrip() for line in expected.strip("\n").split("\n")]
    pattern = ""
    for number, line in enumerate(lines):
        last = number == len(lines) - 1
        if line == "...":
            pattern += r"(?:.*\n)*?"
            continue
        line_pattern = re.escape(line).replace(re.escape("..."), ".*?")
        if numbers:
            line_pattern = re.sub(r"\d+", r"(\\d+)", line_pattern)
        pattern += line_pattern + r"[ \t]*" + ("" if last else r"\n")
    found = re.fullmatch(pattern + r"\n*", output.strip("\n") + "\n")
    if found is None:
        return False
    if not numbers:
        return True
    minimums = [int(each) for each in re.findall(r"\d+", "\n".join(lines))]
    return all(int(number) >= minimum for number, minimum in zip(found.groups(), minimums, strict=True))


def differs(expected: Any, found: Any, where: str = "$") -> str:
    """Return where the answer differs from the page; "" if it does not. "..." matches anything."""
    if expected == "...":
        return ""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name, value in expected.items():
            if name not in found:
                return f"{where}.{name} is missing"
            if difference := differs(value, found[name], f"{where}.{name}"):
                return difference
        return ""
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return f"{where} has {len(found)} items, not {len(expected)}"
        pairs = enumerate(zip(expected, found, strict=True))
        return next((difference for n, (a, b) in pairs if (difference := differs(a, b, f"{where}[{n}]"))), "")
    return "" if expected == found else f"{where} is {found!r}, not {expected!r}"


def make_programs(folder: Path) -> None:
    folder.mkdir()
    for name, line in PROGRAMS.items():
        program = folder / name
        program.write_text(f"#!{sys.executable} -P\nimport sys\nsys.path[:0] = {sys.path!r}\n{line}\n", "utf-8")
        program.chmod(0o755)
    for name in ("python", "python3"):
        shim = folder / name
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', "utf-8")
        shim.chmod(0o755)
    if shutil.which("bash") is None:  # pragma: no cover
        raise RuntimeError("the pages' commands are for bash")
