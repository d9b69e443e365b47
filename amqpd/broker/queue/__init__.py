"""Queues: ready order, rules, consumers, and the logs they are cursors over."""
