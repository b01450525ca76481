"""Measures a pretrained model with scaled frequencies beyond its trained length: ``posenc extend``."""
