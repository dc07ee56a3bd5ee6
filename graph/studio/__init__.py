"""LangGraph Studio on a run: the graphs that its server offers, their threads, and the copies that forks work in."""
