"""From queue to lake: a Spark source, sink and export job over the logs. The server never imports it; see README.md."""
