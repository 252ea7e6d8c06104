"""Reading, searching and writing V4 manifests: roots and leaves."""
