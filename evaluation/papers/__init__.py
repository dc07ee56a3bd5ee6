"""Every table and figure of the two papers: what makes it, what that needs, and what it costs."""
