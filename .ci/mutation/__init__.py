"""Mutants of the core, all in one build: what `.ci/mutants` is made of."""
