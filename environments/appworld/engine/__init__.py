"""Programs run by the AppWorld virtual environment's Python: standard library, the appworld package and each other."""
