"""Remove delete entries that apply to no live data file."""
