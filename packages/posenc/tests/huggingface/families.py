"""Compares what is read of every family with transformers' own code, on tiny models with random weights.

    python -m tests.huggingface.families
    python -m tests.huggingface.families t5 pixtral    # these alone, and the others as they are in the record

writes the figures into families.json, beside this file, and the table of families into docs/huggingface.md. A family
that takes more than `LIMIT` seconds keeps its row, and is named at the end.
"""

import functools
import json
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import posenc
from posenc import T5, Chunk, Inkling, Learned, NoPE, Positions, QueryScale, RoPE, Sinusoidal, logits
from posenc.huggingface import ModelPositions, patch, scheme_from_config
from posenc.huggingface.questions import Asked, is_own, model_class
from posenc.huggingface.reading import default_keys, reason
from posenc.huggingface.variants import CosineSinusoidal, Frequencies, OffsetLearned
from tests.huggingface.configs import ALIKE, FAMILIES, LACKING, OTHERS, SMALLER, TINY
from tests.huggingface.tiny_models import Scores, compared, compared_by_softmax, config_of, exact_alibi, model_of, run

RECORD = Path(__file__).with_name("families.json")
PAGE = Path(__file__).parents[4] / "docs" / "huggingface.md"
HEAD = "| model_type | what its layers do | error |\n|---|---|---|\n"
NAMES = {row.split()[0] for row in (*FAMILIES, *ALIKE, *OTHERS)}
IDS = torch.arange(40)[None] % 57 + 5
LIMIT = 600
Figures = tuple[int, float]
"""How many numbers were compared, and their largest difference, as a share of the largest number."""


def figures(ours: Tensor, theirs: Tensor) -> Figures:
    assert ours.shape == theirs.shape
    ours, theirs = ours.detach(), theirs.detach()
    return theirs.numel(), float((ours - theirs).abs().max() / theirs.abs().max())


def scores(name: str) -> Figures:
    """The scores of every layer; for a family with several configurations, of each."""
    count, worst = 0, 0.0
    for row in [row for row in (*FAMILIES, *ALIKE) if row.split()[0] == name]:
        config = config_of(row)
        found, more, off = compared(config, scheme_from_config(config))
        assert not found, (row, found)
        count, worst = count + more, max(worst, off)
    return count, worst


def made(name: str) -> tuple[Any, ModelPositions]:
    """The model and what was read, with weights large enough to matter."""
    config = config_of(name)
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model, scheme_from_config(config)


def table(name: str) -> Figures:
    """What is added to the input."""
    model, said = made(name)
    added: list[Tensor] = []
    [found] = [
        module
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding) and ("position" in path or path == "wpe")
    ]
    found.register_forward_hook(lambda module, args, out: added.append(out))
    with torch.no_grad():
        model(input_ids=IDS)
    assert said.input is not None
    said.input.weight.data = found.weight.data  # type: ignore[operator, union-attr]
    return figures(said.input.table(Positions.arange(IDS.size(1)), dtype=torch.float64), added[0])


def patches(name: str) -> Figures:
    """What is added to the patches of an image."""
    model, said = made(name)
    [(path, weight)] = [(path, each) for path, each in model.named_parameters() if "position_embedding" in path]
    seen: list[Tensor] = []
    holder = model.get_submodule(path.split(".position_embedding")[0])
    holder.register_forward_hook(lambda module, args, out: seen.append(out))
    image = torch.randn(1, 3, model.config.image_size, model.config.image_size, dtype=torch.float64)
    values = weight.detach().clone().flatten(0, -2)
    with torch.no_grad():
        model(image)
        weight.zero_()
        model(image)
    assert said.input is not None
    said.input.weight.data = values  # type: ignore[operator, union-attr]
    return figures(said.input.table(Positions.arange(len(values)), dtype=torch.float64), seen[0] - seen[1])


def outputs(name: str) -> Figures:
    """The output of the model, whose own attention posenc replaces. Of Falcon without its rounding to bfloat16."""
    config = config_of(name)
    torch.manual_seed(0)
    how = "sdpa" if name == "falcon" else "eager"  # which adds Falcon's bias twice
    model = transformers.AutoModel.from_config(config, attn_implementation=how).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    with torch.no_grad(), exact_alibi():
        theirs = model(IDS).last_hidden_state
        with patch(model, scheme_from_config(config).schedule):
            ours = model(IDS).last_hidden_state
    return figures(ours, theirs)


def windows(name: str) -> Figures:
    """The weights of attention within a window of patches, of every layer."""
    torch.manual_seed(0)
    model: Any = transformers.AutoModel.from_config(config_of(name)).eval()
    blocks = [block for stage in model.encoder.layers for block in stage.blocks]
    count, worst = 0, 0.0
    for block, (scheme, _) in zip(blocks, scheme_from_config(model.config).schedule, strict=True):
        theirs, net = block.attention.self, block.attention.self.continuous_position_bias_mlp
        nn.init.normal_(net[0].bias)
        names = {"tau": theirs.logit_scale.flatten(), "inner.weight": net[0].weight, "inner.bias": net[0].bias}
        scheme.load_state_dict(names | {"outer.weight": net[2].weight})
        x = torch.randn(1, block.window_size**2, theirs.num_attention_heads * theirs.attention_head_size)
        heads = (theirs.num_attention_heads, -1)
        q, k = (each(x).unflatten(-1, heads).transpose(1, 2) for each in (theirs.query, theirs.key))
        ours = logits(q, k, scheme(Positions.grid(*2 * (block.window_size,)))).softmax(-1)
        more, off = figures(ours, theirs(x, output_attentions=True)[1])
        count, worst = count + more, max(worst, off)
    return count, worst


def buckets(name: str) -> Figures:
    """T5's bias, of both stacks."""
    found = [biases(config_of(name), part) for part in ("encoder", "decoder")]
    return sum(count for count, _ in found), max(off for _, off in found)


def biases(config: Any, part: str | None) -> Figures:
    """What the layers hand over to be added to scores: T5's buckets, or Inkling's profiles."""
    said = scheme_from_config(config, part)
    model: Any = model_of(config, model_class(config, part))
    model = getattr(model, f"get_{part}")() if part else model
    mixes, tables = [], []
    for module in model.modules():
        if type(module).__name__.endswith("RelativeLogits"):
            module.register_forward_pre_hook(lambda module, args: mixes.append((module.proj.data, args[0])))
        if type(module).__name__.endswith("RelativePositionBias") and hasattr(module, "proj"):  # of Inkling 2
            model.float()  # which it computes in, whatever its weights are
            note = functools.partial(lambda proj, norm, args: mixes.append((proj, args[0] * norm.scale)), module.proj)
            module.norm.register_forward_pre_hook(note)
        if hasattr(module, "relative_attention_bias") and not hasattr(module, "prepare_input"):  # UDOP's of boxes
            tables.append(nn.init.normal_(module.relative_attention_bias.weight).data)
    calls, _ = run(model, IDS, torch.arange(IDS.size(1))[None])
    calls = [call for call in calls if call.bias is not None or tables]  # Inkling 2 attends to its layers too
    schemes: list[Any] = [scheme for scheme, _ in said.schedule]
    assert len({id(scheme) for scheme in schemes}) == len(tables or schemes)
    count, worst = 0, 0.0
    for n, (scheme, call) in enumerate(zip(schemes, calls, strict=True)):
        if tables:
            scheme.weight.data = tables[n % len(tables)]
        else:
            scheme.B.data = mixes[n][0].data.mT
        encoding = scheme(Positions.arange(IDS.size(1)), dtype=torch.float64)
        if mixes:
            encoding = encoding.with_projected({"profile": mixes[n][1].detach().double().transpose(1, 2)})
        assert call.bias is not None
        q = torch.zeros(1, scheme.num_heads, IDS.size(1), 1, dtype=torch.float64)
        more, off = figures(logits(q, q, encoding).tril(), call.bias.tril())
        count, worst = count + more, max(worst, off)
    return count, worst


def sinusoids(name: str) -> Figures:
    """What is added to the input of the encoder, and of the decoder where it is no learned table."""
    model, count, worst = transformers.AutoModel.from_config(config_of(name)), 0, 0.0
    for part in ("encoder", "decoder"):
        table = scheme_from_config(model.config, part).input
        theirs: Any = getattr(model, part).embed_positions
        if isinstance(table, Sinusoidal):
            added = theirs(IDS) if hasattr(theirs, "weights") else theirs.weight[None]
            more, off = figures(table.table(Positions.arange(added.size(1))), added)
            count, worst = count + more, max(worst, off)
        else:
            assert isinstance(table, Learned)
            assert table.weight.shape == theirs.weight.shape
    return count, worst


def rotated(name: str) -> Figures:
    """Rotated vectors, and the table of a configuration that has one."""
    config = config_of(name)
    if name == "esm":
        from transformers.models.esm.modeling_esm import EsmRotaryEmbedding, apply_rotary_pos_emb

        config.position_embedding_type = "rotary"
        x, places = torch.randn(1, 3, 40, 12), torch.arange(40)[None] * 50
        cos, sin = EsmRotaryEmbedding(config)(x, places)
        theirs, _ = apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=1)
        return figures(scheme_from_config(config).schedule[0][0].tokens(Positions(places)).rotate_query(x), theirs)
    from transformers.models.dinov3_vit import modeling_dinov3_vit as dinov3

    rope = dinov3.DINOv3ViTRopePositionEmbedding(config).eval()
    x = torch.randn(1, 3, 1 + 15, 20)
    cos, sin = rope(torch.zeros(1, 3, 3 * config.patch_size, 5 * config.patch_size))
    theirs, _ = dinov3.apply_rotary_pos_emb(x, x, cos, sin)
    scheme: Any = scheme_from_config(config).schedule[0][0]
    return figures(scheme.tokens(scheme.grid(3, 5, prefix=1)).rotate_query(x), theirs)


HOW: dict[str, Callable[[str], Figures]] = {
    **dict.fromkeys(("bloom", "falcon", "gptj", "mpt"), outputs),
    "swinv2": windows,
    **dict.fromkeys(("clip_vision_model", "deit", "dinov2", "siglip_vision_model", "vit"), patches),
    **dict.fromkeys(("dinov3_vit", "esm"), rotated),
    **dict.fromkeys(("m2m_100", "nllb-moe", "whisper"), sinusoids),
    **dict.fromkeys(("mt5", "t5", "umt5"), buckets),
}


def compare(name: str) -> Figures:
    """A family against transformers."""
    return HOW.get(name, table if name in OTHERS else scores)(name)


NAMED = {
    "AxialRoPE": "axial RoPE",
    "DividedALiBi": "ALiBi divided by √d, or RoPE",
    "SwinV2": "cosine scores and a network's bias",
    "RoPE3D": "the map of V-JEPA 2",
    "T5": "buckets of distances",
    "TransformerXL": "the terms of Transformer-XL",
}


def words(said: ModelPositions) -> str:
    """What the layers of a model do."""
    found = [] if said.causal else ["an encoder"]
    if isinstance(said.input, OffsetLearned):
        found.append("a learned table, of which the first rows are no positions")
    elif isinstance(said.input, Sinusoidal):
        first = ", cosines first" * isinstance(said.input, CosineSinusoidal)
        found.append("sinusoids" + " of tensor2tensor" * (said.input.layout == "tensor2tensor") + first)
    elif said.input is not None:
        found.append("a learned table")
    schemes = [scheme for scheme, _ in said.schedule]
    parts = list({id(part): part for scheme in schemes for part in scheme.parts}.values())
    ropes = [part for part in parts if isinstance(part, RoPE)]
    found += dict.fromkeys(filter(None, map(_of_part, parts)))
    found += ["a rotation for each type of layer"] * (len(ropes) > 1) + ["layers without positions"] * (
        bool(ropes) and len(ropes) < len(parts) and any(isinstance(part, NoPE) for part in parts)
    )
    windows = {window for _, window in said.schedule}
    kinds = {"chunks" if isinstance(w, Chunk) else "windows" for w in windows if w is not None}
    found += [f"{kind}{' in some layers' if None in windows else ''}" for kind in kinds]
    for layer in said.layers[:1]:
        found += ["a scale of its own"] * (layer.scale is not None) + ["a softcap"] * (layer.softcap is not None)
        found += ["a sink per head"] * layer.sinks + ["windows of patches"] * (layer.patches is not None)
    indexers = [layer.indexer for layer in said.layers if layer.indexer is not None]
    if indexers:
        found.append(f"the best keys of an indexer: {_of_part(indexers[0].rotation)}")
    found += ["layers without attention"] * any(
        "those are the layers with attention" in remark for remark in said.remarks
    )
    return ", ".join(each for each in found if each)


def _of_part(part: Any) -> str:
    if isinstance(part, NoPE):
        return ""
    if isinstance(part, QueryScale):
        return "queries scaled by position"
    if not isinstance(part, RoPE):
        return NAMED.get(type(part).__name__, type(part).__name__)
    name = "M-RoPE" if part.allocation is not None else "RoPE"
    said = [" on neighbouring channels"] * (part.layout == "interleaved")
    if part.channels.start:
        said.append(" on the last channels of a head")
    elif part.rotary_dim < part.head_dim:
        said.append(" on a share of the channels")
    if isinstance(part.scaling, Frequencies) and max(part.scaling.theta) < 0:
        said.append(" turning the other way")
    return name + ",".join(said)


def described(name: str) -> dict[str, Any]:
    """A row of the table without its figures."""
    parts = ("encoder", "decoder") if name == "whisper" else (None,)  # which differ
    does = "; ".join(words(scheme_from_config(config_of(name), part)) for part in parts)
    return {"does": does}


def written(record: Mapping[str, Any]) -> str:
    """The table, a row for all families that differ in nothing that it shows."""
    rows: dict[str, list[str]] = {}
    for name, row in sorted(record["families"].items()):
        rows.setdefault(row["does"], []).append(name)
    lines = []
    for does, names in sorted(rows.items(), key=lambda row: row[1]):
        worst = max(record["families"][name]["worst"] for name in names)
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {does} | {worst:.0e} |")
    return HEAD + "\n".join(lines) + "\n"


def tiny(name: str, **given: Any) -> Any:
    """A configuration of a type of transformers, of tiny sizes where it has their keys."""
    known = default_keys(CONFIG_MAPPING[name])
    takes = [key for key in TINY if known.get(key) is not None or (key == "head_dim" and key in known)]
    return CONFIG_MAPPING[name](**{key: TINY[key] for key in takes} | given)


def asked(name: str, part: str | None = None, **given: Any) -> Figures:
    """A family that is asked, against a tiny model with random weights: what is added to its input, and the scores,
    masks and scales of its layers. ValueError for a family that no size makes tiny."""
    config = tiny(name, **SMALLER.get(name, {}) | given)
    part = part or ("decoder" if getattr(config, "is_encoder_decoder", False) else None)
    said = scheme_from_config(config, part)
    if any(isinstance(scheme, (T5, Inkling)) for scheme, _ in said.schedule):
        return biases(config, part)
    shape = Asked(config, part).model  # without weights
    if sum(each.numel() for each in shape.parameters()) > 2e7:
        raise ValueError(f"{name} must have at most 20 million parameters")
    kind = type(shape)
    own = any(map(is_own, shape.modules()))
    model: Any = model_of(config, kind, "eager" if own else "posenc_watched")
    found, count, worst = (compared_by_softmax if own else compared)(config, said, kind)
    assert not found, (name, found)
    if said.input is None:
        return count, worst
    added: list[tuple[nn.Module, Tensor]] = []
    for path, module in model.named_modules():
        if re.search("pos|wpe", path) and re.search("Embedding", type(module).__name__):
            module.register_forward_hook(lambda module, args, out: added.append((module, out)))
    with torch.no_grad(), Scores():
        model(input_ids=IDS)
    buffers = [(each, each.pos_encoding[: IDS.size(1)]) for each in model.modules() if hasattr(each, "pos_encoding")]
    module, theirs = next(each for each in (*added, *buffers) if each[1].size(-1) == said.input.dim)
    if isinstance(said.input, Learned):
        said.input.weight.data = module.weight.data  # type: ignore[operator, union-attr]
    ours = said.input.table(Positions.arange(IDS.size(1)), dtype=torch.float64)
    more, off = figures(ours, theirs.reshape(1, -1, theirs.size(-1)).expand_as(ours))
    return count + more, max(worst, off)


def answer(name: str) -> str:
    """How a type is read with its default configuration and what that lacks: by the "table", as words of what was
    "asked: ..." (of the encoder too, where it is another stack), or "refused: ..."."""
    try:
        config = CONFIG_MAPPING[name](**LACKING.get(name, {}))
    except Exception as error:  # of huggingface_hub, for a type without defaults
        return f"refused: its default configuration is an error of transformers, {reason(error)}"
    inner = config if config.model_type in NAMES else (getattr(config, "text_config", None) or config)
    if inner.model_type in NAMES:
        return "table"
    parts = ("decoder", "encoder") if getattr(inner, "is_encoder_decoder", False) else (None,)
    said: list[str] = []
    for part in parts:
        try:
            said.append(words(scheme_from_config(config, part)) or "no positions")
        except ValueError as error:
            if not said:
                return f"refused: {REASON.sub('', str(error))}"
    return f"asked: {'; '.join(dict.fromkeys(said))}"


def asked_figures(name: str) -> Figures | None:
    """Those of a family that is asked, or of its text, or None if transformers has no tiny model of it alone."""
    given = LACKING.get(name, {})
    try:
        return asked(name, **given)
    except AssertionError:
        raise
    except Exception:  # of transformers, whose sizes depend on one another
        whole = CONFIG_MAPPING[name](**given)
        parts = [getattr(whole, part, None) for part in ("text_config", "decoder")]
        texts = [part.model_type for part in parts if getattr(part, "model_type", name) != name]
        return asked_figures(texts[0]) if texts else None


REASON = re.compile(
    r"^the positions of .*? could not be read from its model's code: |^.*?, got '[^']*'(, )?"
    r"| \(the configurations of its parts.*"
    r"| \(did you mean '[^']*'\?\)$",
    re.S,
)


def of_types(record: Mapping[str, Any]) -> str:
    """The table of types that are not in the first, a row for all with the same answer."""
    answers: dict[str, list[str]] = {}

    def worst_of(names: list[str]) -> str:
        found = [record["errors"][name] for name in names if name in record["errors"]]
        return f"{max(found):.0e}{f' ({len(found)} of {len(names)})' * (len(found) < len(names))}" if found else ""

    for name, said in sorted(record["types"].items()):
        if said != "table":
            answers.setdefault(re.sub(r"layer \d+", "a layer", said), []).append(name)
    rows = [
        f"| {', '.join(f'`{name}`' for name in names)} | {said.partition(': ')[0]} | {said.partition(': ')[2]} | "
        f"{worst_of(names)} |"
        for said, names in sorted(answers.items())
    ]

    def counted(names: Iterable[str]) -> str:
        said = [record["types"][name].partition(":")[0] for name in names]
        return "{} are in the table above, {} more are read, and {} are refused".format(
            *(said.count(how) for how in ("table", "asked", "refused"))
        )

    causal = [name for name in record["types"] if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]
    return (
        f"Of {len(record['types'])} types of transformers {record['transformers']}, {counted(record['types'])}. Of the "
        f"{len(causal)} causal ones {counted(causal)}. A model of several parts is read by its text.\n\n"
        "| type | how | what its layers do, or why not | error |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def page(text: str, rows: str, types: str) -> str:
    """The page with its tables replaced."""
    for begin, new in ((r"\| model_type \|", rows), (r"Of \d+ types", types)):
        found = re.search(rf"^{begin}.*?(?=\n\n(?![|]))", text, re.M | re.S)
        assert found is not None, begin
        text = text[: found.start()] + new.rstrip("\n") + text[found.end() :]
    return text


class Hung(BaseException):
    """A family takes too long. What catches the errors of transformers' code does not catch it."""


@contextmanager
def limited(name: str) -> Iterator[None]:
    def stop(*args: Any) -> None:
        raise Hung(f"{name} takes more than {LIMIT} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)


def main(names: list[str]) -> None:
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8")) if names else {}
    families, types, errors = (
        {name: row for name, row in record.get(key, {}).items() if name in known}
        for key, known in (("families", NAMES), ("types", types_of()), ("errors", types_of()))
    )
    wrong = []
    for name in names or sorted({*NAMES, *types_of()}):
        try:
            with limited(name):
                if name in NAMES:
                    count, worst = compare(name)
                    families[name] = described(name) | {"compared": count, "worst": float(f"{worst:.1e}")}
                    print(f"{name}: {count} numbers, off by {worst:.1e}", flush=True)
                if name in types_of():
                    said = answer(name)
                    found = asked_figures(name) if said.startswith("asked") else None
                    types[name] = said
                    errors.pop(name, None)
                    errors |= {} if found is None else {name: float(f"{found[1]:.1e}")}
                    print(f"{name}: {said}, off by {errors.get(name)}", flush=True)
        except (AssertionError, Hung) as error:
            wrong.append(str(error))
    record = {"transformers": transformers.__version__, "posenc": posenc.__version__}
    record |= {
        key: dict(sorted(rows.items())) for key, rows in (("families", families), ("types", types), ("errors", errors))
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), written(record), of_types(record)), encoding="utf-8")
    if wrong:
        raise SystemExit(f"{len(wrong)} families are not what was read, or are not run: {'; '.join(wrong)}")


def types_of() -> list[str]:
    """All types of transformers."""
    return sorted(CONFIG_MAPPING)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main(sys.argv[1:])
