"""The checks of `posenc.conformance`, run on published packages at pinned versions: ``python -m field.report``."""
