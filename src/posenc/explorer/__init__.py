"""The explorer: a page on which the schemes can be tried, and the server behind it."""
