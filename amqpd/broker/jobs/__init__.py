"""Messages moved, copied, deleted and sent back, out of any place of a queue: see README.md."""
