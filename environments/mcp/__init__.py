"""Make an environment of an MCP server, which is untrusted: its tools, its answers, its hints and its life."""
