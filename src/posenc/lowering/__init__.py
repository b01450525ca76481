"""What backends run, derived from pieces.

`block`: the queries and keys that terms are bound to; `forms`: each term on a block, for one score, and by distance;
`folding`: terms that become part of the query and the key.
Imports `posenc.encoding`.
"""
