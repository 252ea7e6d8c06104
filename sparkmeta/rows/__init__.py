"""Read the rows of data files."""
