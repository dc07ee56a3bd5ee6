"""The embedded policy: a tiny model with pointer-copy rendering, for trying the system without downloads or a GPU."""
