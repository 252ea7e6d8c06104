"""Edit table metadata: the next root with its leaves, the next manifest list, and commit attempts."""
