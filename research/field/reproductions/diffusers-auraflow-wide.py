"""AuraFlow: latents wider than its table get the positions of other rows, and no error."""

import diffusers
import torch
from diffusers.models.transformers.auraflow_transformer_2d import AuraFlowPatchEmbed

print(f"diffusers {diffusers.__version__}, torch {torch.__version__}")

embed = AuraFlowPatchEmbed(4, 4, patch_size=1, in_channels=1, embed_dim=8, pos_embed_max_size=16)  # 4 x 4
print("expected: an error for 2 x 6 patches, whose columns are more than the table has")
try:
    embed(torch.zeros(1, 1, 2, 6))
except (ValueError, IndexError) as error:
    print("came:    ", type(error).__name__)
    raise SystemExit(0) from None
places = embed.pe_selection_index_based_on_dim(2, 6).view(2, 6)
print("came:     positions", "; ".join(str([divmod(n, 4) for n in row]) for row in places.tolist()))
raise SystemExit(1)
