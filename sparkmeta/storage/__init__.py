"""File access other than DataFrames: locations, reading, writing and listing."""
