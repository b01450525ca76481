"""One file a package: how its positional encodings are built and called, and what it claims of them."""
