"""Hold the programs for the AppWorld virtual environment: they import the standard library and the appworld package."""
