"""Readers and writers of manifests in all formats, with one schema of entries."""
