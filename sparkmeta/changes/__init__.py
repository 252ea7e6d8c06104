"""Read the changes of commits: compare roots with their parents, list changed files, check the invariants of trees."""
