"""Data and delete files: write a file in a task, measure it, and read the footers of files that exist."""
