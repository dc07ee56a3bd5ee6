"""Models that ``make`` brings into the checkout by a name."""
