"""Tests of what needs transformers, an extra, are left out where it is not installed."""

from importlib.util import find_spec

NEEDS_IT = ["test_config.py", "test_config_errors.py", "test_config_tables.py", "test_page.py"]
collect_ignore = [] if find_spec("transformers") else NEEDS_IT
