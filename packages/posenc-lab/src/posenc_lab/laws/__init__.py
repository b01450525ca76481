"""Measures the mathematical properties (laws) of schemes, as data without assertions."""
