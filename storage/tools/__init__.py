"""Looking into logs offline: dump and verify."""
