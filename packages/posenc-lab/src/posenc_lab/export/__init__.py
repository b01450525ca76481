"""Writes records as one table: CSV or Parquet."""
