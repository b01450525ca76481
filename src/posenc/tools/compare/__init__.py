"""The lab behind ``posenc compare``: trains every scheme short, tests it long, and records what it measured."""
