"""Success on fixed evaluation sets, with intervals."""
