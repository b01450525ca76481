"""The page in the browser: every scheme drawn live, by mathematics that is tested against posenc."""
