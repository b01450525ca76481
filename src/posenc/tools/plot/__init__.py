"""Pictures and reports, made from the records of a comparison."""
