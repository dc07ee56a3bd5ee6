"""The nodes of an iteration, thin calls into the rooms: from rollouts to new weaknesses, from these to new tasks."""
