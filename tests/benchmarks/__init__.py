"""`make bench`: planning, decoding and driver memory beside Iceberg's Java library and pyiceberg. See README.md."""
