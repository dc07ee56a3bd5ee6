"""Hold any environment to what the rest of the project relies on."""
