"""One co-evolution iteration as a LangGraph graph, and the commands that run it."""
