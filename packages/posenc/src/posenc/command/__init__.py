"""The command ``posenc``: its own subcommands ``schemes`` and ``kernel``, and those that other packages bring."""
