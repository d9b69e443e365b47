"""Spark source, sink and export job over the logs. The server never imports this package; see README.md."""
