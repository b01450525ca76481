"""LongCat AudioDiT and MiniMax Music 3 cannot be trained after a call in inference mode."""

import diffusers
import torch
from diffusers.models.transformers.transformer_longcat_audio_dit import AudioDiTRotaryEmbedding
from diffusers.models.transformers.transformer_minimax_music3 import MiniMaxMusic3RotaryEmbedding

print(f"diffusers {diffusers.__version__}, torch {torch.__version__}")

audio, music = AudioDiTRotaryEmbedding(8), MiniMaxMusic3RotaryEmbedding(8)
calls = {"AudioDiT": lambda: audio(torch.zeros(1, 4, 8)), "Music 3": lambda: music(4, torch.device("cpu"))}
failed = []
for name, call in calls.items():
    with torch.inference_mode():
        call()
    try:
        (torch.ones(4, 8, requires_grad=True) * call()[0]).sum().backward()
    except RuntimeError as error:
        failed.append(f"{name}: {str(error).split('.')[0]}")

print("expected: gradients after a call in inference mode")
print("came:    ", "; ".join(failed) or "gradients")
raise SystemExit(bool(failed))
