"""Success on fixed evaluation sets and official categories, with intervals."""
