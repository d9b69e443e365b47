"""mkdocs hooks for the site of docs/: READMEs of the code as pages, links out of docs/, marks for tests.

The README of the root is the first page. Pages link to READMEs beside the code; on the site these are pages below
`code/`, so every link stays on the site and `mkdocs build --strict` checks it. A link to a source file becomes plain
text. Marks for tests/docs (HTML comments) are removed.

`python -m interop.manual.site [FOLDER]` builds the site into docs/site. mkdocs refuses a target folder within docs/, so
the site is built beside it and moved.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
FRONT: Final = {"README.md": "index.md"}
ROOT_PAPERS: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
FOLDERS: Final = ("amqpd", "routing", "storage", "cli", "tests", "interop")
CODE: Final = "code/"
SHIM: Final = "https://unpkg.com/iframe-worker/shim"
OUR_SHIM: Final = "assets/frame-worker.js"
FENCE: Final = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)\s*$", re.MULTILINE | re.DOTALL)
COMMENT: Final = re.compile(r"<!--.*?-->\n?", re.DOTALL)
LINK: Final = re.compile(r"(?P<picture>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")


def papers() -> list[str]:
    """Return the paths of all READMEs beside the code, below the root: `amqpd/broker/README.md`."""
    found = [
        path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md")) if "node_modules" not in path.parts
    ]
    return [*ROOT_PAPERS, *(str(path.relative_to(ROOT)) for path in found)]


def uri_of(paper: str) -> str:
    """Return the path of a README on the site: the root's is the first page, others are below `code/`."""
    return FRONT.get(paper, CODE + paper)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for paper in papers():
        files.append(File.generated(config, uri_of(paper), abs_src_path=str(ROOT / paper)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    return rewritten(markdown, page.file.src_uri)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Replace the theme's one external script by a local one, without which browsers cannot search a site of local
    files.
    """
    return output.replace(SHIM, "../" * page.url.count("/") + OUR_SHIM)


def on_post_template(output_content: str, *, template_name: str, config: MkDocsConfig) -> str:
    return output_content.replace(SHIM, OUR_SHIM)


def rewritten(markdown: str, src_uri: str) -> str:
    """Return the page as the site has it. src_uri: its path on the site, `streams.md` or `code/amqpd/README.md`."""
    parts: list[str] = []
    end = 0
    for fence in FENCE.finditer(markdown):
        parts += [_prose(markdown[end : fence.start()], src_uri), fence.group()]
        end = fence.end()
    return "".join([*parts, _prose(markdown[end:], src_uri)])


def _prose(text: str, src_uri: str) -> str:
    return LINK.sub(lambda link: _link(link, src_uri), COMMENT.sub("", text))


def _link(link: re.Match[str], src_uri: str) -> str:
    target, _, anchor = link["target"].partition("#")
    if not target or "://" in target or target.startswith("mailto:"):
        return link.group()
    there = posixpath.normpath(posixpath.join(posixpath.dirname(_in_tree(src_uri)), target))
    if there.startswith("docs/"):
        uri = there.removeprefix("docs/")
    elif there.endswith(".md"):
        uri = uri_of(there)
    else:
        return link["text"]
    if not (ROOT / there).is_file():
        return link["text"] if (ROOT / there).is_dir() else link.group()  # a missing file is reported by mkdocs
    relative = posixpath.relpath(uri, posixpath.dirname(src_uri) or ".")
    return f"{link['picture']}[{link['text']}]({relative}{'#' + anchor if anchor else ''})"


def _in_tree(src_uri: str) -> str:
    if src_uri in FRONT.values():
        return next(paper for paper, uri in FRONT.items() if uri == src_uri)
    return src_uri.removeprefix(CODE) if src_uri.startswith(CODE) else f"docs/{src_uri}"


def build(target: Path, *options: str) -> int:
    """Build the site, strictly, into `target`, which is replaced. Return mkdocs' exit code."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "site"
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
        code = subprocess.run([*command, "--site-dir", str(made), *options], check=False).returncode
        if code == 0:
            shutil.rmtree(target, ignore_errors=True)
            shutil.move(made, target)
    return code


def main(arguments: list[Any]) -> int:
    return build(Path(arguments[0]) if arguments else ROOT / "docs" / "site")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
