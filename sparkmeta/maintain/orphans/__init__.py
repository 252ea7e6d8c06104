"""Find the files in a table's folder that the table does not need, and delete them."""
