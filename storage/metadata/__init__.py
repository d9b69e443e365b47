"""The metadata store: declared objects in a database."""
