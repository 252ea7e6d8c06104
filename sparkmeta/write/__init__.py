"""Write rows: tasks write DataFrames to data and delete files, and commits add these to a table."""
