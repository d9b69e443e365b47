"""The reference pages of the documentation, made from tables in the code, and additions to mkdocs for the site of
`docs/`.

`python -m interop.manual` writes docs/reference again; tests/docs compares. README.md describes the process.
"""
