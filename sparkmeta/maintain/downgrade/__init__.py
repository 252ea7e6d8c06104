"""Downgrade a table with metadata trees to format version 3: manifest lists of Avro manifests."""
