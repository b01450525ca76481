"""What a scheme gives to attention.

`terms`: the kinds of score and value terms, as data, and how far they let a query see; `Encoding` and its `Rotation`;
`Context`, with the features of a layer and their sums; `staleness` of an encoding; `claims`: whether terms are what
their `Distance` declares. Imports `posenc.positions` and `posenc.rotation`.
"""
