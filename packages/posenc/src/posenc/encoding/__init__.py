"""What a scheme gives to attention.

`pieces`: the kinds of score and value terms, as data; `Encoding`, `Rotation` and `Context`; `features` of a layer and
the `clocks` made of them; `horizon`: how far a query sees; `pytree` and `staleness` of an encoding; `marks` on what it
has rotated or added to; `claims`: whether terms are what their `Distance` declares.
Imports `posenc.positions` and `posenc.rotation`.
"""
