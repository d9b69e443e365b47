"""The page docs/compatibility.md, made of the record and of the lists of differences: cluster_gateway.py."""
