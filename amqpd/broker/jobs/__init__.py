"""Jobs that move, copy, delete, redrive or replay messages: see README.md."""
