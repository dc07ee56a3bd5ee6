"""The roles that think: reflector, explorer, abstractor."""
