"""The schemes, one a file, named as the field names them. They do not import one another."""
