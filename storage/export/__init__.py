"""Export of logs to files, Delta and databases, without Spark. The server never imports this package; see README.md."""
