"""Vhosts with their exchanges, queues, bindings, policies and limits, and their metadata."""
