"""Where tokens are, and who sees whom.

`Positions`, which `validation` and `builders` check and build; `layout`, what is known of positions without reading
them; `tiles` and `visibility`, which pairs may see one another; `training`, positions for training.
Imports torch, `posenc.arguments` and `posenc.compat`.
"""

from posenc.positions import positions as positions
