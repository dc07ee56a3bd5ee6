"""BFCL's use of the scripted roles: tasks of exploration for its evaluation sets."""
