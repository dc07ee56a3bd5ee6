"""The nodes of an iteration, a file each: thin calls into the rooms."""
