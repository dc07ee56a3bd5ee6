"""An environment from a plain Python class: its methods are the tools, its public attributes are the state."""
