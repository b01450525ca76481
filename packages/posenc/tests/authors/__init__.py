"""Numbers that the authors' own code gave, and posenc's for the same inputs.

``numbers.json`` has for each scheme the repository, commit and place of the code, and what it gave once for each case.
The code itself is not here. ``python -m tests.authors`` writes the table of ``docs/authors.md``.
"""
