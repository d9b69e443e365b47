"""What Prometheus asks for; see README.md."""
