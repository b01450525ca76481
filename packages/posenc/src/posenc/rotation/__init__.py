"""Maps of queries and keys.

`phases`: maps of tokens, and rotation of pairs of channels by position times frequency, computed in double precision;
`norms`: a norm of each head and its rotation; `kernel` and `launch`: both in Triton;
`scalings`: how the frequencies of RoPE are scaled to longer texts; `scaling_parameters`: a scaling from
transformers' dictionary; `onnx`: a rotation as ONNX's own operator.
Imports `posenc.positions`.
"""
