"""The roles: reflector, explorer, abstractor, solver, validator; scripted or played by a chat model."""
