"""The commands, a room for each, and `kit`, which they share.

The library never imports a tool, with one exception: `posenc.show` is `explore`'s, and is imported when it is used. A
tool may import the library and `kit`; `extend` and `explore` read what other tools record.
"""
