"""Delayed messages on the disk: see README.md."""
