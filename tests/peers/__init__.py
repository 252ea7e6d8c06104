"""Real tables by Iceberg's own Java library and by pyiceberg, and Java's answers about them."""
