"""Make an environment of tools that a server offers: its servers, its documentation, its episodes."""
