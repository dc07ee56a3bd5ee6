"""What the notebooks show: small runs and scenes, and the tables that are made of them."""
