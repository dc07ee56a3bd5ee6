"""Rounds that another engine trains: what it plays is recorded, and becomes the records of a round."""
