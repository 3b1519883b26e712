"""Where the rows of a stream go instead of a table of the database."""
