"""SEAL's learning interface: cues around any environment, while training and never in an evaluation."""
