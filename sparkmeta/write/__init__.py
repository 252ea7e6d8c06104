"""Write rows: data files from DataFrames, by tasks, and the changes of a table that are made of them."""
