"""A whole benchmark in one package: a house with lamps, with an option, held-out tasks and a metric of its own."""
