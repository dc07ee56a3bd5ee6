"""The rehearsal of a recipe: its whole chain at toy size, on whatever this machine has."""
