"""Many tables at once: their health, its history, and their metadata tables."""
