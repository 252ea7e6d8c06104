"""Catalogs: pyiceberg's, and folders of tables on a file system."""
