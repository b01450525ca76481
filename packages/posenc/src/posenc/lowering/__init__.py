"""What backends run, derived from pieces.

`block`: the queries and keys that terms are bound to; `distances`: those that occur in
it; `forms`: each kind of term on a block, and for one score;
`folding`: terms that become part of the query and the key.
Imports `posenc.encoding`.
"""
