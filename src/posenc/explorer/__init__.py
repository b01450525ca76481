"""The explorer: a page in the browser that draws what positional encodings do."""
