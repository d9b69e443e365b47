"""The exchange type x-jms-topic over the wire, and through a restart."""

from __future__ import annotations

