"""Generates text from a long prompt whose keys and values are divided among processes.

    torchrun --nproc-per-node 2 examples/sharded_decoding.py

The prompt is read in parallel: each process computes its own tokens and keeps their keys. Then all processes compute
each new token together: each attends to the keys that it holds, and the results are merged. They take turns in keeping
the new keys, so that a cache that no single device could hold grows evenly. The tokens are the same for any number of
processes.
"""

import argparse

import torch
import torch.distributed as dist

import posenc
from posenc import Positions
from posenc.distributed import ShardedCache, Sharding, sharded
from posenc.models import Decoder

VOCABULARY, DIM, LAYERS, HEADS = 32, 32, 2, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=200, help="tokens of the prompt")
    parser.add_argument("--new", type=int, default=16, help="tokens to generate")
    options = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)

    torch.manual_seed(0)  # the same weights and prompt everywhere
    model = Decoder(VOCABULARY, DIM, LAYERS, HEADS, position=posenc.RoPE(DIM // HEADS) + posenc.ALiBi(HEADS))
    model = model.to(device).eval()
    prompt = torch.randint(VOCABULARY, (1, options.prompt)).to(device)
    positions = Positions.arange(options.prompt, device=device)
    sharding, cache = Sharding(positions), ShardedCache()
    with torch.no_grad():
        with sharded(sharding):
            logits = model(sharding.shard(prompt), positions=sharding.positions, cache=cache)
        # The prompt's last token is held by one process; all need what follows it.
        token = sharding.gather(logits)[:, -1:].argmax(-1)
        found = [token]
        for _ in range(options.new - 1):
            positions = positions.following()
            token = model(token, positions=positions, cache=cache).argmax(-1)
            found.append(token)
    held = torch.tensor([len(cache)], device=device)
    every = [torch.empty_like(held) for _ in range(dist.get_world_size())]
    dist.all_gather(every, held)
    if dist.get_rank() == 0:
        print("generated:", *torch.cat(found, 1)[0].tolist())
        print("tokens held by each process:", *(int(one) for one in every))
    dist.barrier()  # a process that ends early would break the others' connections
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
