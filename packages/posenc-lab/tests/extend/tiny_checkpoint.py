"""A checkpoint of a tiny model with a tokenizer of bytes, as a folder that transformers loads."""

from pathlib import Path

import pytest
import torch

LONGEST_TRAINED = 32


def checkpoint(folder: Path, **changes: object) -> Path:
    """A Llama of two layers, trained (it says) at 32 tokens, whose tokens are bytes."""
    transformers = pytest.importorskip("transformers", reason="transformers needs Python 3.11")
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    config = transformers.LlamaConfig(
        **{
            "vocab_size": 256,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": LONGEST_TRAINED,
            "initializer_range": 0.3,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        | changes
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def texts(folder: Path) -> list[str]:
    """Ten files of words, each long enough for a few pieces."""
    words = "the cat sat on the mat and the dog lay by the door while rain fell softly "
    for n in range(10):
        (folder / f"{n}.txt").write_text(f"{n} " + words * (6 + n))
    return [str(folder)]
