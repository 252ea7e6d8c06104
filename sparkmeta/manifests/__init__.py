"""Manifest files as DataFrames of one entry schema, a format's reader beside its writer."""
