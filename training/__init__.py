"""A round of training, and what is read from its rollouts. Importing this package imports no torch."""
