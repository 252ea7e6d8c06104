"""What a commit did, read only: roots compared with their parents, changed files, and the invariants of a tree."""
