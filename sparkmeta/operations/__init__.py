"""How a table's metadata is loaded and swapped: folders of files, SQL catalogs, single metadata files."""
