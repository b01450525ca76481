"""torchscale: XPOS, called as its MultiheadAttention calls it: a cache keeps plain keys, and all are rotated anew."""

from torchscale.component.xpos_relative_position import XPOS

from posenc_check import Attention
from posenc_check.subjects import attend


def attention(module, query, key, value, visible):
    queries = module(query.flatten(0, 1), offset=key.size(2) - query.size(2)).view_as(query)
    keys = module(key.flatten(0, 1), downscale=True).view_as(key)
    return attend(queries, keys, value, visible[:, 0])[0]


xpos = Attention(build=XPOS, call=attention, options={"head_dim": 16}, causal=True, relative=True)

SUBJECTS = (("XPOS", xpos),)
