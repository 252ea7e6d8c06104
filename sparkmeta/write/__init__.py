"""Write rows: tasks write DataFrames to data and delete files, from which changes of a table are made."""
