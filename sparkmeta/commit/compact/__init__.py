"""Compaction of a V4 tree's manifests: what to rewrite, the rewriting by Spark tasks, the fold into the next root."""
