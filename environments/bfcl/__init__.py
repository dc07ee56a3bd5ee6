"""Run BFCL multi-turn: the package's own simulators and checkers behind a safe dispatcher."""
