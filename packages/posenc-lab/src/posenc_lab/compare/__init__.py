"""The lab behind ``posenc compare``: trains every scheme on short inputs, and tests it on longer ones."""
