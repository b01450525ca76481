"""Maps of queries and keys.

`phases`: maps of tokens, and rotation of pairs of channels by position times frequency, computed in double precision;
`scalings`: how the frequencies of RoPE are scaled to longer texts; `given`: a scaling from transformers' dictionary.
Imports `posenc.positions`.
"""
