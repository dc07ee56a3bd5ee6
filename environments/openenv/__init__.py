"""Any environment that an OpenEnv server offers, over its protocol 0.10."""
