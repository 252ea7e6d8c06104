"""Every byte that is not a DataFrame: locations, reading, listing."""
