"""The checks of `posenc.tools.check`, run on published packages at pinned versions: ``python -m field.report``."""
