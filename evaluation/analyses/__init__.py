"""Analyses of both papers over records: cost, agreement, similarity, diversity, lengths and curves."""
