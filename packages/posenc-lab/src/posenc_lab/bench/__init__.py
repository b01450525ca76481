"""Measures time and memory relative to attention without positions: ``posenc bench``."""
