"""What processes do that hold the tokens of a text for a model of transformers: the same as for the whole text."""

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from posenc import T5, ALiBi, Chunk, CoPE, DeBERTa, DynamicNTK, NoPE, Positions, RoPE, Schedule, Sinusoidal, YaRN
from posenc.distributed import Sharding, sharded
from posenc.huggingface import patch, scheme_from_config
from tests.distributed.processes import told
from tests.huggingface.test_attention import built
from tests.rounding import of_sums

TOKENS, ROWS = 21, 2
IS_TOKEN = torch.arange(TOKENS) >= torch.tensor([[6], [0]])
TEXTS: dict[str, Callable[[], Positions]] = {
    "plain": lambda: Positions.arange(TOKENS, start=2),
    "packed": lambda: Positions.packed([8, 3, 10]),
    "padded": lambda: Positions.padded(IS_TOKEN),
}


def own(model: Any) -> None:
    """The model's own positions, through posenc's attention."""
    model.set_attn_implementation("posenc")


def own_schedule(model: Any) -> None:
    """The model's own positions, by its schedule."""
    patch(model, scheme_from_config(model.config).schedule)


def put(what: Callable[[], Any]) -> Callable[[Any], None]:
    """A function that patches a model."""

    def change(model: Any) -> None:
        patch(model, what())
        own(model)

    return change


def scaled_llama4(model: Any) -> None:
    """Llama 4 with its own chunks, without its scale of queries by their place."""
    for module in model.modules():
        if hasattr(module, "attn_temperature_tuning"):
            module.attn_temperature_tuning = False
    patch(model, YaRN(2.0, 16))
    own(model)


HALVES = {"bidirectional": True}
MODELS: dict[str, tuple[str, Callable[[Any], Any], tuple[str, ...]]] = {
    "llama": ("llama", own, ("plain", "padded")),
    "llama, t5": ("llama", put(lambda: T5(4, 8, 20)), ("plain", "packed", "padded")),
    "llama, by length": ("llama", put(lambda: DynamicNTK(2.0, 8)), ("plain", "padded")),
    "llama, cope": ("llama", put(lambda: CoPE(12, 6)), ("packed",)),
    "qwen3, yarn": ("qwen3", put(lambda: YaRN(2.0, 16)), ("packed",)),
    "qwen3, alibi": ("qwen3", put(lambda: ALiBi(4) + RoPE(16)), ("padded",)),
    "gemma3": ("gemma3", own, ("packed", "padded")),
    "gemma3, windows": ("gemma3", put(lambda: Schedule([(RoPE(16), 4), (NoPE(), None)])), ("plain", "packed")),
    "gemma3, chunks": ("gemma3", put(lambda: Schedule([(RoPE(16), Chunk(6)), (ALiBi(4), None)])), ("padded",)),
    "gemma2": ("gemma2", own, ("plain",)),
    "gpt_oss": ("gpt_oss", own, ("padded",)),  # which does not tell documents apart by itself
    "llama4, scaled": ("llama4", scaled_llama4, ("padded",)),
    "llama4": ("llama4", own_schedule, ("padded",)),
    "gpt2, sinusoidal": ("gpt2", put(lambda: Sinusoidal(48)), ("packed",)),
    "bloom": ("bloom", own_schedule, ("padded",)),
    "bert, t5": ("bert", put(lambda: T5(4, 8, 20, **HALVES)), ("plain", "padded")),
    "modernbert, scaled": ("modernbert", put(lambda: YaRN(2.0, 16)), ("padded",)),
    "modernbert, rope": ("modernbert", put(lambda: RoPE(12)), ("plain", "padded")),
}


def run_all(names: Sequence[str]) -> list[str]:
    """What is wrong with each model; one that raises, raises in all processes."""
    wrong = []
    for name in names or MODELS:
        for text in MODELS[name][2]:
            try:
                wrong += [f"{name}, {text}: {what}" for what in run(name, text)]
            except Exception:
                wrong.append(f"{name}, {text}: {traceback.format_exc()}")
            dist.barrier()
    return wrong


def run(name: str, text: str) -> list[str]:
    """Where outputs and gradients of the tokens of all processes are not those of the whole text."""
    family, change, _ = MODELS[name]
    model = built(family).double()
    change(model)
    learned = [*model.named_parameters()]
    positions = TEXTS[text]()
    ids = torch.randint(3, 40, (ROWS, TOKENS), generator=torch.Generator().manual_seed(2))
    takes = {} if family == "bloom" else {"position_ids": positions.coords.expand(ROWS, -1)}
    takes |= {"attention_mask": IS_TOKEN.long()} if text == "padded" else {}
    takes |= {"use_cache": False} if family not in ("bert", "modernbert") else {}
    is_token = (positions.document != -1).expand(ROWS, -1)

    def out(ids: Tensor, **given: Any) -> Tensor:
        found = model(input_ids=ids, **given)
        return found.logits if hasattr(found, "logits") else found.last_hidden_state

    def gradients(of: Tensor, wanted: Tensor) -> list[Tensor]:
        found = torch.autograd.grad((of * wanted).sum(), [x for _, x in learned], allow_unused=True)
        return [torch.zeros_like(x) if d is None else d.clone() for d, (_, x) in zip(found, learned, strict=True)]

    whole = out(ids, **takes)
    wanted = torch.randn(whole.shape, generator=torch.Generator().manual_seed(4), dtype=whole.dtype)
    wanted = wanted * is_token[..., None]
    expected = gradients(whole, wanted)
    wrong = []
    for order, method in (("zigzag", "gather" if "cope" in name else "ring"), ("striped", "gather")):
        sharding = Sharding(positions, order=order)
        mine = {key: sharding.shard(x) if isinstance(x, Tensor) else x for key, x in takes.items()}
        with sharded(sharding, method):
            got = out(sharding.shard(ids), **mine)
            found = gradients(got, sharding.shard(wanted))
        # Norms are computed in single precision, whatever the model's.
        apart = ((got - sharding.shard(whole)) * sharding.shard(is_token)[..., None]).abs().max()
        if apart > of_sums(torch.float32, 64 * TOKENS, whole, score=16):
            wrong.append(f"{order}: output, {apart}")
        for (of, _), part, all_of_it in zip(learned, found, expected, strict=True):
            dist.all_reduce(part)
            if (part - all_of_it).abs().max() > of_sums(torch.float32, 64 * TOKENS * 32, all_of_it, score=32):
                wrong.append(f"{order}: {of}, {(part - all_of_it).abs().max()} of {all_of_it.abs().max()}")
    return wrong


def again(_: None) -> list[str]:
    """What is wrong with gradients where layers are computed again, of a scheme that projects its table when bound."""
    ids, sharding = torch.randint(3, 40, (ROWS, TOKENS)), Sharding(Positions.arange(TOKENS))
    dist.broadcast(ids, 0)
    found = []
    for reentrant, method in ((None, "gather"), (False, "gather"), (True, "gather"), (False, "ring"), (True, "ring")):
        model = built("llama").train()
        torch.manual_seed(0)
        patch(model, DeBERTa(4, 12, max_distance=8))
        model.double()
        if reentrant is not None:
            model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": reentrant})
        with sharded(sharding, method):
            out = model(sharding.shard(ids), position_ids=sharding.positions.coords, use_cache=False)
            out.logits.square().sum().backward()
        found.append([x.grad for x in model.parameters()])
    return [
        "checkpointed"
        for others in found[1:]
        for one, other in zip(found[0], others, strict=True)
        if (one - other).abs().max() > of_sums(torch.float32, 64 * TOKENS * 32, one, score=32)
    ]


def messages(_: None) -> list[tuple[str, str]]:
    """The messages of errors, which all processes raise, and what each must say."""
    llama, llama4, dynamic = (built(name) for name in ("llama", "llama4", "llama"))
    for model in (llama, llama4, dynamic):
        own(model)
    dynamic.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    tuned = built("llama4")
    patch(tuned, YaRN(2.0, 16))
    own(tuned)
    hybrid = built("llama")
    own(hybrid)
    hybrid.config.layer_types = ["full_attention", "linear_attention"]
    scaled = built("llama")
    patch(scaled, YaRN(2.0, 8))
    padded = Sharding(Positions.padded(IS_TOKEN), order="contiguous")
    plain = Sharding(Positions.arange(TOKENS), order="contiguous")
    ids = torch.full((ROWS, TOKENS), 5)
    at = {"position_ids": plain.positions.coords, "use_cache": False}

    def run(model: Any, sharding: Sharding = plain, whole: bool = False, **given: Any) -> Callable[[], Any]:
        def call() -> None:
            with sharded(sharding):
                model(ids if whole else sharding.shard(ids[:, : len(sharding.whole)]), **given)

        return call

    def generated() -> None:
        with sharded(plain), torch.no_grad():
            llama.generate(plain.shard(ids), max_new_tokens=2)

    def closed() -> None:
        model = built("llama").train()
        own(model)
        model.activation_checkpointing_enable()
        with sharded(plain):
            out = model(plain.shard(ids), **at).logits
        out.sum().backward()

    mine, one = padded.positions.coords, Sharding(Positions.arange(1))
    of_one = torch.ones(ROWS, len(one.positions), dtype=torch.int64)
    wrong_mask = torch.ones(ROWS, len(padded.positions), dtype=torch.int64)
    of_three = torch.ones(3, len(plain.positions), dtype=torch.int64)
    dense = torch.ones(ROWS, 1, len(plain.positions), TOKENS, dtype=torch.bool)
    others = "process 0 has an error"
    first = plain.rank == 0
    calls: list[tuple[Callable[[], Any], str]] = [
        (run(llama, use_cache=False), others.replace("0", "1") if first else "position_ids must be those of this proc"),
        (
            run(llama, padded, position_ids=mine, attention_mask=wrong_mask, use_cache=False),
            "attention_mask must be 1 at this process's tokens and 0 at its padding" if first else others,
        ),
        (run(llama, whole=True, position_ids=torch.arange(TOKENS)[None], use_cache=False), "input_ids must have the"),
        (run(llama, whole=True, **at), "input_ids must have the"),
        (run(llama, **at, attention_mask=of_three), "attention_mask must be 1 at this process's tokens and 0"),
        (run(llama, **(at | {"use_cache": True})), "use_cache must be False while a text is divided among processes"),
        (run(llama, **at, attention_mask=dense), "attention_mask must be (rows, tokens) or None"),
        (
            run(llama, one, attention_mask=of_one, use_cache=False),
            "every process must have tokens where it runs a model",
        ),
        (generated, "use_cache must be False while a text is divided among processes"),
        (run(llama4, **at), "position_ids do not reach Llama4TextAttention"),
        (run(tuned, **at), "Llama4TextAttention scales queries by their place among this process's tokens"),
        (run(dynamic, **at), "rope_type 'dynamic' in LlamaAttention would take the length of this process's tokens"),
        (run(scaled, **at), "attn_implementation must be 'posenc' while a text is divided among processes, got 'sdpa'"),
        (run(hybrid, **at), "LlamaAttention is of a model with layers of type linear_attention"),
        (closed, "sharded must still be open when activation checkpointing computes layers again"),
    ]
    return told(calls * 2)  # an error leaves nothing on its way


def everything(names: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    return run_all(names) + again(None), messages(None)
