"""What backends run, derived from terms.

`distances`: a block of queries and keys that terms are bound to, and the distances that occur in it; `forms`: each kind
of term on a block, for one score, and as a part of the query and the key. Imports `posenc.encoding`.
"""
