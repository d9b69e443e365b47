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
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

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


class BuildPy(build_py):
    """Puts the one module beside the package that Spark's registration asks for."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            Path(self.build_lib, "pyspark_amqp.py").write_text(REGISTRATION, encoding="utf-8")


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
    setup(ext_modules=extensions(build_dir), options=options, cmdclass={"build_py": BuildPy, "build_ext": BuildExt})


main()
