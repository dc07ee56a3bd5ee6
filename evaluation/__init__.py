"""Success on fixed panels and official categories, with intervals."""
