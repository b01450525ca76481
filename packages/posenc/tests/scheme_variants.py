"""Which schemes are another with other numbers, to whoever does not look at the numbers."""

# Schemes that models, backends and laws meet as another one that is tried, with other numbers. Their oracles, laws and
# mutants are tried always; the tests of models and backends go through them in `make check`.
SCHEME_VARIANTS = {
    *("partial_rope", "p_rope", "le_rope", "mrope", "rope_3d", "axial_rope", "mixed_rope"),  # rope
    *("fope", "fope with fewer pairs than frequencies"),  # rope
    *("string", "lie_re", "tupe", "swin_v2", "cameras"),  # token maps, as mla, pope and query_scale
    *("self_extend", "dual_chunk"),  # re_rope
    "sandwich",  # kerple
    *("relative_2d sam", "swin with a class token", "t5 along an axis"),  # relative_2d, fire, swin
    *("grape_a", "tapa", "tapa uneven"),  # cope
}
