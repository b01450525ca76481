"""Faults that no check looks for, or in parts that none runs, each with a script; and their sections of the page."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from field import scripts
from field.faults_text import FAULTS_TEXT
from field.faults_vision import FAULTS_VISION
from field.kinds import LIMIT, MEANT, TIDY, WRONG, Fault, Note
from field.notes import NOTES
from field.scripts import Outcome

SCRIPTS = Path(__file__).parent / "reproductions"
HEADING = "## Met while running transformers' models\n"
READ = "## Found by reading\n"
NEXT = "## Not run\n"
IN_ALL = "In all: "
SEVERAL = {WRONG: "mistakes", LIMIT: "limitations"}
MET = (
    "posenc's tests run models of transformers with posenc's attention and compare the outputs "
    "(`docs/huggingface.md`). This found the following, which no check looks for. Each has a script that "
    "needs only torch and transformers, and exits with 1 if the fault is present and with 0 if not. "
    "Two more found this way are listed above: Falcon with ALiBi "
    "[adds its bias twice](#transformers-falcon-with-alibi-adds-its-bias-twice-under-eager-attention) under eager "
    "attention, and dynamic scaling rotates a row "
    "[by the longest of its batch]"
    "(#transformers-longrope-and-dynamic-choose-their-frequencies-for-a-batch-as-a-whole)."
)
SAID = (
    "The positional code of these packages was also read. These faults are in parts that no subject runs, or no check "
    "looks for them. Scripts exit as above, and need only torch and the package."
)

FAULTS: tuple[Fault, ...] = (
    Fault(
        "transformers-llama4-temperature.py",
        "Llama 4: queries are scaled by their place in the cache",
        WRONG,
        "Layers without positions scale the query of position p by 1 + attn_scale ln(1 + ⌊(p + 1)/floor_scale⌋), and "
        "take p from the cache and the index instead of `position_ids`. Padding on the left counts, so that near a "
        "multiple of `floor_scale` (8,192 by default) a text beside a longer one gives other logits than "
        "alone. Ministral 3 and Mistral 4 scale by `position_ids`.",
        "`models/llama4/modeling_llama4.py`, `Llama4TextAttention.forward`",
        "pad on the right, or rows of one length; up to 8,191 slots, padding included, nothing is scaled.",
    ),
    Fault(
        "transformers-swinv2-mask.py",
        "Swin v2: the mask of shifted windows is added twice",
        WRONG,
        "Scores of patches of another window get −200, where the published code has −100. Either way their weight is "
        "all but 0, unless scores differ by as much, which the layer's scale (at most 100 times a cosine) allows. "
        "Swin2SR has the same two lines.",
        "`models/swinv2/modeling_swinv2.py`, `Swinv2SelfAttention.forward`; `models/swin2sr/modeling_swin2sr.py`, "
        "`Swin2SRSelfAttention.forward`",
        "let `get_attn_mask` of every `Swinv2Layer` give half of the mask.",
    ),
    Fault(
        "transformers-swinv2-absolute.py",
        "Swin v2: use_absolute_embeddings does not run",
        WRONG,
        "The table has a row for a class token, which Swin v2 does not have, and cannot be added to the patches: every "
        "forward pass is an error.",
        "`models/swinv2/modeling_swinv2.py`, `Swinv2Embeddings.__init__`",
        "make `model.embeddings.position_embeddings` a parameter with a row per patch.",
        "transformers#37161",
    ),
    Fault(
        "transformers-falcon-bfloat16.py",
        "Falcon: the ALiBi bias is rounded to bfloat16 in every precision",
        LIMIT,
        "Slopes are cast to bfloat16, and so is the product with the place of the key, also in a model in float32 or "
        "double. The bias counts from the start of the text, so that the rounding grows with the place: from 256 on "
        "neighbouring keys share a bias.",
        "`models/falcon/modeling_falcon.py`, `build_alibi_tensor`",
        "put another function in the place of `modeling_falcon.build_alibi_tensor`, if the words of the published "
        "model are not to be repeated exactly; with posenc, "
        "`posenc.huggingface.patch`.",
        "another engine repeats the rounding to give the same words (NVIDIA/TensorRT-Model-Connect#667)",
    ),
    Fault(
        "transformers-eager-double.py",
        "Eager attention in double precision: NaN in a row that is padded on the left",
        LIMIT,
        "The mask holds the least double, which is −∞ once the softmax casts scores to float32. A token of padding on "
        "the left sees −∞ alone, whose softmax is NaN, and the next layer passes it on to the row's tokens. Models in "
        "float32 and below are not concerned.",
        "`masking_utils.py`, `eager_mask`, and `eager_attention_forward` in `models/llama/modeling_llama.py` and alike "
        "in the other families",
        '`attn_implementation="sdpa"`, or padding on the right.',
    ),
    Fault(
        "transformers-deberta-checkpointing.py",
        "DeBERTa v2 and v3: reentrant activation checkpointing fails",
        LIMIT,
        "The norm of the relative embeddings is computed once, outside of the layers, which get it by its name. "
        "Reentrant checkpointing cuts only the graph of what is passed by place, so that the second layer's backward "
        "pass runs through the norm again. Without `norm_rel_ebd` nothing is shared, and it works.",
        "`models/deberta_v2/modeling_deberta_v2.py`, `DebertaV2Encoder.forward`",
        "`use_reentrant=False`, the default since transformers#43203.",
        "the same error in unslothai/unsloth#3336",
    ),
    Fault(
        "transformers-deberta-z-steps.py",
        "DeBERTa: the last layer cannot be repeated",
        LIMIT,
        "`z_steps`, an attribute of the model that no configuration sets, is to run the last layer again; above 1 the "
        "model appends to what has become a tuple. Version 1 has the same lines.",
        "`models/deberta_v2/modeling_deberta_v2.py`, `DebertaV2Model.forward`",
        "leave `z_steps` at 0, and call `model.encoder.layer[-1]` yourself.",
    ),
    Fault(
        "transformers-packed-cache.py",
        "Packed documents are told apart only without a cache and a mask",
        MEANT,
        "`position_ids` that start again tell documents apart in a call without a cache and without `attention_mask`. "
        "A plain call makes a cache (`use_cache` is true by default), and a collator may add a mask of ones: either "
        "way later documents see the earlier ones, and nothing says so.",
        "`masking_utils.py`, `_preprocess_mask_arguments`",
        "`use_cache=False`, and no `attention_mask`.",
        "made for training without padding in transformers#39194; a mask of ones was declined in transformers#46634",
    ),
    *FAULTS_TEXT,
    *FAULTS_VISION,
)


def run(jobs: int) -> dict[str, Outcome]:
    """Every script that was written by hand, each in an interpreter of its own."""
    names = sorted({entry.script for entry in (*FAULTS, *NOTES) if entry.script})
    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(names, pool.map(lambda name: scripts.run(SCRIPTS / name), names), strict=True))


def put(page: str, outcomes: Mapping[str, Outcome]) -> str:
    """The page with their sections, in place of those that it had, and with its counts. What a check has found too
    stands among its findings; if its script does not show it, that is said here."""
    before, following, after = page.partition(NEXT)
    before = before.partition(HEADING)[0]
    above = {entry for entry in (*FAULTS, *NOTES) if f"\n### {entry.title}\n" in before}
    new = {fault: outcomes[fault.script] for fault in FAULTS if fault.script in outcomes and fault not in above}
    met = {fault: outcome for fault, outcome in new.items() if fault.package == "transformers"}
    read = {fault: outcome for fault, outcome in new.items() if fault.package != "transformers"}
    missed = [
        f"[{note.title}](#{anchor(note.title)}), {link(note)}: {outcome.error or outcome.came}"
        for note in NOTES
        if note in above and (outcome := outcomes.get(note.script)) and not outcome.fault
    ]
    lines = [HEADING, MET, "", *_section(met), READ, SAID, "", *_section(read)]
    lines += _list("These stand above, and their scripts do not show them:", missed)
    return _counted(before + "\n".join([*lines, ""]) + following + after)


def _counted(page: str) -> str:
    """The page, whose opening says how many subjects it has, how many of each kind were found, and by which way."""
    rows = page.partition("|:-:|\n")[2].partition("\n\n")[0].splitlines()
    packages = sum(row.startswith("| **") for row in rows)
    found = Counter(re.findall(r"^\*\*([A-Z][a-z ]+)\*\*, ", page, re.MULTILINE))
    said = [f"{found[kind.capitalize()]} {SEVERAL.get(kind, kind)}" for kind in (WRONG, LIMIT, MEANT, TIDY)]
    wrong = re.findall(rf"^\*\*{WRONG.capitalize()}\*\*, (.*?)\. ", page.partition(HEADING)[0], re.MULTILINE)
    places = {one.split()[0] for versions in wrong for one in versions.split(", ")}
    line = (
        f"{IN_ALL}{len(rows) - packages} subjects of {packages} packages; {', '.join(said)}. The checks found "
        f"{len(wrong)} of the mistakes, in {len(places)} of the packages; reading the code and running the models of "
        f"these packages found {found[WRONG.capitalize()] - len(wrong)} more."
    )
    return re.sub(rf"^{IN_ALL}.*$", line, page, count=1, flags=re.MULTILINE)


def anchor(title: str) -> str:
    """What a heading is called in links, on GitHub."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _section(outcomes: Mapping[Fault, Outcome]) -> list[str]:
    lines = []
    for fault, outcome in outcomes.items():
        if outcome.fault:
            lines += [
                f"### {fault.title}",
                "",
                f"**{fault.kind.capitalize()}**, {_version(fault)}. {fault.text}",
                "",
                f"- expected: {outcome.expected}",
                f"- came: {outcome.came}",
                f"- {link(fault)}",
                f"- in the code: {fault.where}",
                f"- instead: {fault.instead}",
                *([f"- elsewhere: {fault.upstream}"] if fault.upstream else []),
                "",
            ]
    for package in dict.fromkeys(fault.package for fault in outcomes):
        gone = [fault for fault, outcome in outcomes.items() if outcome.fault is False and fault.package == package]
        items = [f"{fault.title}, {link(fault)}" for fault in gone]
        lines += _list(f"Gone in {_version(gone[0])}:", items) if gone else []
    unknown = [(fault, outcome.error) for fault, outcome in outcomes.items() if outcome.fault is None]
    return lines + _list("Not run:", [f"{fault.title}, {link(fault)}: {error}" for fault, error in unknown])


def _version(fault: Fault) -> str:
    """The package and its version, or the package alone where it is not installed."""
    try:
        return f"{fault.package} {version(fault.package)}"
    except PackageNotFoundError:
        return fault.package


def link(entry: Fault | Note) -> str:
    """Its script, as the page links to it."""
    return f"[{entry.script}]({SCRIPTS.name}/{entry.script})"


def _list(heading: str, lines: Iterable[str]) -> list[str]:
    items = [f"- {line}" for line in lines]
    return [heading, "", *items, ""] if items else []
