"""Spark source, sink and export engine over the logs. The server never imports this package; see README.md."""
