"""One page, played from top to bottom: a broker and a folder of its own, each block done as its language means.

A `Player` knows nothing of pytest; what is wrong is a `WrongBlock` with page, line, and what was said.
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
"""What stands on the path of a page's commands: this environment's, whether it is installed or a checkout."""


class WrongBlock(AssertionError):
    """A block that failed, or printed something else than the page says."""


class Player:
    """Plays a page in `folder`. Use it with `with`: it starts the broker, and ends it and all that runs beside it."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self.folder = folder
        settings = dict(value.split("=", 1) for value in page.all_of("broker"))
        self.broker = BrokerProcess(folder / "amqpd-data", settings=settings)
        self.skipped: list[tuple[Block, str]] = []
        self.elsewhere: list[tuple[Block, str]] = []
        self._beside: list[subprocess.Popen[bytes]] = []
        self._said = ""
        self._answer: Any = None
        self._missing = ""
        self._scripts = 0
        self._ports: dict[str, int] = {}

    def __enter__(self) -> Self:
        _make_programs(self.folder / ".programs")
        self.broker.start()
        assert self.broker.ready is not None
        known = {"amqp": "5672", "http": "15672", "amqps": "5671", "https": "15671", "prometheus": "15692", "kafka": "9092"}
        self._ports = {known[name]: port for name, (_, port) in self.broker.ready.listeners.items() if name in known}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._beside:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._beside:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.broker.close()

    def play(self) -> None:
        """Raises: WrongBlock for the first block that is not what the page says."""
        for part in self.page.parts:
            if isinstance(part, PageMark):
                if part.name == "needs":
                    self._missing = missing(part.value)
                continue
            reason = part.marks.get("not run") or self._missing
            if "run by" in part.marks:
                self.elsewhere.append((part, part.marks["run by"]))
            elif reason:
                self.skipped.append((part, reason))
            else:
                self._do(part)

    def unused(self) -> list[str]:
        """Return the files that the page writes and that no later block uses: `docs/a.md:12 b.py`.

        A block uses a file when it names it, or when it imports it, which leaves byte code that is not older.
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

    def _do(self, block: Block) -> None:
        if before := block.marks.get("before"):
            self._run(block, ["bash", "-euo", "pipefail", "-c", before], 0)
        if name := block.marks.get("file") or block.marks.get("append"):
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a" if "append" in block.marks else "w", encoding="utf-8") as file:
                file.write(self._here(block.text))
            if path.suffix == ".py":
                compile(block.text, block.where, "exec")
        else:
            how: dict[str, Callable[[Block], None]] = {
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
            }
            how[block.language](block)

    # -- languages

    def _python(self, block: Block) -> None:
        self._scripts += 1
        script = self.folder / f"example_{self._scripts}.py"
        script.write_text(self._here(block.text), "utf-8")
        self._said = self._run(block, [sys.executable, "-P", str(script)], int(block.marks.get("exit", "0")))

    def _sh(self, block: Block) -> None:
        command = ["bash", "-euo", "pipefail", "-c", self._here(block.text)]
        if "background" in block.marks:
            with (self.folder / f"background-{len(self._beside)}.log").open("wb") as log:
                process = subprocess.Popen(
                    command, cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            self._beside.append(process)
        else:
            self._said = self._run(block, command, int(block.marks.get("exit", "0")))

    def _settings(self, block: Block) -> None:
        """In a folder of its own: the page's may have an amqpd.toml. Files that are named have to be there."""
        suffix = ".toml" if block.language == "toml" else ".conf"
        path = self.folder / f"checked{suffix}"
        path.write_text(block.text, "utf-8")
        command = [str(self.folder / ".programs" / "amqpd"), "--check-config", "--config", str(path)]
        self._said = self._run(block, command, int(block.marks.get("exit", "0")))

    def _http(self, block: Block) -> None:
        line, _, body = block.text.partition("\n")
        method, path = line.split()
        sent = self._here(body).strip().encode() or None
        request = urllib.request.Request(f"{self.broker.http_url}{path}", sent, method=method)
        request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            raise WrongBlock(f"{block.where}: {line} -> {error.code} {error.read().decode()}") from None
        self._said = content.decode()
        self._answer = json.loads(content) if content[:1] in (b"{", b"[") else None

    def _sql(self, block: Block) -> None:
        import duckdb

        here = Path.cwd()
        os.chdir(self.folder)
        try:
            found = duckdb.sql(block.text)
            self._said = "\n".join("\t".join(map(str, row)) for row in found.fetchall()) + "\n" if found else ""
        except duckdb.Error as error:
            raise WrongBlock(f"{block.where}: {error}") from None
        finally:
            os.chdir(here)

    def _json(self, block: Block) -> None:
        wanted = json.loads(block.text)
        if "answers" in block.marks and (wrong := differs(wanted, self._answer)):
            raise WrongBlock(f"{block.where}: {wrong}")

    def _yaml(self, block: Block) -> None:
        import yaml

        list(yaml.safe_load_all(block.text))

    def _file_only(self, block: Block) -> None:
        raise WrongBlock(f"{block.where}: a block of {block.language} needs the mark `file` or `run by`")

    def _text(self, block: Block) -> None:
        for mark in ("prints", "prints, numbers at least"):
            if mark in block.marks and not agrees(block.text, self._here_back(self._said), mark != "prints"):
                raise WrongBlock(f"{block.where}: the page says\n{block.text}\nbut what was printed is\n{self._said}")

    # -- what they share

    def _run(self, block: Block, command: list[str], wanted: int) -> str:
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL, capture_output=True,
                text=True, timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            said = f"{error.stdout!r} {error.stderr!r}"
            raise WrongBlock(f"{block.where}: not done after {TIMEOUT_S} s: {said}") from None
        if done.returncode != wanted:
            beside = "".join(log.read_text("utf-8", "replace")[-4000:] for log in self.folder.glob("background-*.log"))
            said = f"{block.text}\n{done.stdout}{done.stderr}{beside}"
            raise WrongBlock(f"{block.where}: exit code {done.returncode}, not {wanted}\n{said}")
        return done.stdout if wanted == 0 else done.stdout + done.stderr

    def _environment(self) -> dict[str, str]:
        ours = ("AMQPD_", "RABBITMQ_", "PYTEST_", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        path = f"{self.folder / '.programs'}:{Path(sys.executable).parent}:{kept['PATH']}"
        return kept | {
            "PATH": path,
            "PYTHONPATH": os.pathsep.join([str(self.folder), *filter(None, sys.path)]),
            "AMQP_URL": self.broker.url,
            "PYSPARK_PYTHON": sys.executable,
            "HOME": str(self.folder),
            "NO_COLOR": "1",
        }

    def _here(self, text: str) -> str:
        """With this broker's ports and folder in place of those that a reader has."""
        for known, port in self._ports.items():
            text = re.sub(rf"(?<=[a-z1][:=]){known}\b", str(port), text)
        text = re.sub(r"(?<![\w./])/backups\b", str(self.folder / "backups"), text)
        return re.sub(r"inactivity_timeout=[12]\b", "inactivity_timeout=6", text)

    def _here_back(self, text: str) -> str:
        for known, port in self._ports.items():
            text = re.sub(rf"(?<=[a-z1]:){port}\b", known, text)
        return text.replace(str(self.folder / "backups"), "/backups").replace(str(self.folder), ".")


def missing(need: str) -> str:
    """Why the blocks that need it cannot be run here; "" where they can."""
    if need != "spark":
        raise ValueError(f"nothing is known of {need}")
    try:
        import pyspark  # noqa: F401
    except ImportError:
        if os.environ.get("TEST_REQUIRE_SPARK"):
            return ""  # and fail
        return "no Spark on this machine (make spark)"
    return ""


def agrees(wanted: str, said: str, numbers: bool = False) -> bool:
    """Whether `said` is what the page says, but for white space at the ends of lines and what dots stand for."""
    lines = [line.rstrip() for line in wanted.strip("\n").split("\n")]
    pattern = ""
    for number, line in enumerate(lines):
        last = number == len(lines) - 1
        if line == "...":
            pattern += r"(?:.*\n)*?"
            continue
        one = re.escape(line).replace(re.escape("..."), ".*?")
        if numbers:
            one = re.sub(r"\d+", r"(\\d+)", one)
        pattern += one + r"[ \t]*" + ("" if last else r"\n")
    found = re.fullmatch(pattern + r"\n*", said.strip("\n") + "\n")
    if found is None:
        return False
    if not numbers:
        return True
    least = [int(each) for each in re.findall(r"\d+", "\n".join(lines))]
    return all(int(is_) >= at_least for is_, at_least in zip(found.groups(), least, strict=True))


def differs(wanted: Any, found: Any, where: str = "$") -> str:
    """Where the answer lacks what the page says; "" where it does not. "..." stands for anything."""
    if wanted == "...":
        return ""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name, value in wanted.items():
            if name not in found:
                return f"{where}.{name} is missing"
            if wrong := differs(value, found[name], f"{where}.{name}"):
                return wrong
        return ""
    if isinstance(wanted, list) and isinstance(found, list):
        if len(wanted) != len(found):
            return f"{where} has {len(found)} items, not {len(wanted)}"
        pairs = enumerate(zip(wanted, found, strict=True))
        return next((wrong for n, (a, b) in pairs if (wrong := differs(a, b, f"{where}[{n}]"))), "")
    return "" if wanted == found else f"{where} is {found!r}, not {wanted!r}"


def _make_programs(folder: Path) -> None:
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
