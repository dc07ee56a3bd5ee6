"""The roles: reflector, explorer, abstractor, solver; scripted or played by a chat model."""
