"""The references of the documentation, made of the tables in the code, and what the site of `docs/` needs beside mkdocs.

`python -m interop.manual` writes docs/reference anew; tests/docs compares. README.md says how the whole is made.
"""
