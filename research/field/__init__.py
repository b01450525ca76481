"""The checks of `posenc_check`, run on published packages at pinned versions: ``python -m field.report``."""
