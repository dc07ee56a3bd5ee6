"""Make an environment of a plain Python class: its methods are the tools, its public attributes are the state."""
