"""Experiment trackers: what they are sent of a run (``figures``), how (``trackers``), and when (``follow``)."""
