"""`python -m interop.manual`: writes the generated pages of docs/reference."""

from __future__ import annotations

from interop.manual.pages import write

if __name__ == "__main__":
    changed = write()
    print(*[f"docs/{name} was written anew" for name in changed] or ["every page is what it was"], sep="\n")
