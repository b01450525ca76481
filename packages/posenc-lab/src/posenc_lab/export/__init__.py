"""Writes records as tables and for experiment trackers: CSV, Parquet, TensorBoard, Weights & Biases, trackio."""
