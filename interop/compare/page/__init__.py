"""The page docs/compatibility.md, made from the record and the lists of differences."""
