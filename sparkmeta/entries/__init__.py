"""What an entry of a manifest is: its columns, the projections that readers take, and inheritance."""
