"""Versions of a step, made before XLA sees it, that a limit is planned on."""
