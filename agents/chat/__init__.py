"""The roles on any LangChain chat model; prompts are text files."""
