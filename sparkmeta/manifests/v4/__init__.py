"""V4 manifests, roots and leaves: their layout, and how they are read, searched and written."""
