"""What is declared, in a database."""
