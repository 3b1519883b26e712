"""What a view reads from the database."""
