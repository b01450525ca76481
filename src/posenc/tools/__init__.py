"""What the command line does, a room for each command, and `kit`, which they share.

The library never imports a tool. A tool may import the library and `kit`; `extend` and `explore` read what other tools
record.
"""
