"""Draws figures of schemes: the figures of ``posenc plot``."""
