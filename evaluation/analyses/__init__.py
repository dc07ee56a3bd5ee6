"""Tables and figures of CoEvolve over records: agreement, similarity, diversity, lengths."""

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""The head and the rows of a table, as text."""
