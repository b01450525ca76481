"""What the page of a scheme says beside its entry: a whole model with it, and when not to use it."""

import ast
import re

import torch

import posenc
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law, Shape

CODE = re.compile(r"[A-Z]\w*[A-Z0-9]\w*|\w+=[\w']+")
GRIDS = {1: None, 2: (8, 8), 3: (2, 4, 4)}
OPTIONS = "dim=96, num_layers=2, num_heads=6, position=scheme"
TEXT = """import torch
from torch.nn.functional import cross_entropy

import posenc
from posenc.models import Decoder

scheme = {scheme}
model = Decoder(256, {options})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

text = torch.randint(256, (4, 65))  # of yours: bytes, or the tokens of a tokenizer
for step in range(2):
    loss = cross_entropy(model(text[:, :-1]{positions}).transpose(1, 2), text[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WRITES = "\nprint(model.generate(text[:1, :10], 20))  # with a cache\n"
IMAGES = """import torch
from torch.nn.functional import cross_entropy

import posenc
from posenc.models import ImageClassifier

scheme = {scheme}
model = ImageClassifier(10, patch=2, {options})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

images, classes = torch.rand(4, 1, 16, 16), torch.randint(10, (4,))  # of yours: 8 x 8 patches
for step in range(2):
    loss = cross_entropy(model(images), classes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
VIDEO = """import torch

import posenc
from posenc.models import Encoder

scheme = {scheme}
model = Encoder(256, {options})
patches = torch.randint(256, (4, 32))  # of yours: codes of 2 x 4 x 4 patches
positions = posenc.Positions.grid(4, 4, frames=2)
print(model(patches, positions).shape)
"""
SEGMENTS = "posenc.Positions.arange(64).with_segment((torch.arange(64) >= 40).long()[None])"
CALLS = {
    "cameras": "posenc.Cameras(16, torch.eye(4).repeat(2, 1, 1))",
    "dual_chunk": "posenc.DualChunk(16, chunk=48, local=8)",
    "p_rope": "posenc.RoPE(16, scaling=posenc.Proportional(0.25))",
    "re_rope": "posenc.ReRoPE(16, window=32)",
    "self_extend": "posenc.SelfExtend(16, group=4, window=32)",
}
"""Calls with a tensor or a scaling, and with sizes that fit a text of 64 tokens."""
PARTS = {"segment": "posenc.Learned(256, 96)", "softcap": "posenc.RoPE(16)", "query_scale": "posenc.RoPE(16)"}
"""Those that encode no place of a key, and what they stand beside in a model."""


def _scheme(entry: Entry) -> Scheme:
    """It, built for the models above."""
    with torch.random.fork_rng(devices=()):
        return entry.build(Shape(96, 6, 16, 256, grid=GRIDS[entry.least_axes]))


def call(scheme: Scheme) -> str:
    """Its constructor, without what need not be said: ``RoPE(16)``."""
    written = ast.parse(f"posenc.{type(scheme).__name__}({scheme.extra_repr()})", mode="eval")
    it = written.body
    assert isinstance(it, ast.Call)
    for keyword in list(it.keywords):
        it.keywords.remove(keyword)
        try:
            with torch.random.fork_rng(devices=()):
                same = eval(ast.unparse(written), {"posenc": posenc}).extra_repr() == scheme.extra_repr()
        except (TypeError, ValueError):
            same = False
        if not same:
            it.keywords.append(keyword)
    return ast.unparse(written)


def whole_model(entry: Entry) -> str:
    """A model with it, from its first line to its last."""
    made = CALLS.get(entry.name) or call(_scheme(entry))
    made = f"{PARTS[entry.name]} + {made}" if entry.name in PARTS else made
    if entry.least_axes > 1:
        return (IMAGES if entry.least_axes == 2 else VIDEO).format(scheme=made, options=OPTIONS)
    positions = f", positions={SEGMENTS}" if entry.needs_segments else ""
    return TEXT.format(scheme=made, options=OPTIONS, positions=positions) + ("" if positions else WRITES)


def when_not(entry: Entry) -> str:
    """A list of the cases that it is not for: what its laws exclude, and the words of its entry."""
    scheme, laws = _scheme(entry), entry.laws
    order = Law.ORDER_FREE not in laws
    blind = order and Law.DIRECTED not in laws
    instead = "; use " + CODE.sub(r"`\g<0>`", scheme.looks_back) + " instead" if scheme.looks_back else ""
    cases = (
        (
            Law.LENGTH_FREE not in laws,
            "**Longer or larger inputs than it was built for.** A position beyond its table or window is an error.",
        ),
        (
            "beyond the training" in entry.limits and "longer than" not in entry.avoid,
            "**Inputs several times longer or larger than in training, as it is.** Angles there are new to the model, "
            "as they are in [RoPE](rope.md#when-not-to-use-it).",
        ),
        (entry.for_decoders, f"**Encoders.** It is for causal attention{instead}."),
        (
            blind,
            "**Encoders that must tell before from after.** Two equal tokens have the same score both ways"
            + (" before it is trained." if "until" in entry.limits else "."),
        ),
        (
            order and Law.ABSOLUTE in laws,
            "**Phrases that must mean the same everywhere.** Scores change when a text is shifted, so padding must not "
            "count as positions.",
        ),
        (
            Law.DECAYING in laws,
            "**Single tokens far back.** The score of an earlier key falls with distance, whatever it contains.",
        ),
        (
            Law.FRACTIONAL not in laws,
            "**Fractional positions**, such as times in seconds or resized grids. It looks them up in a table, and "
            "refuses others.",
        ),
        (
            order and entry.axes == "one",
            "**Rows and columns, or frames.** A token has one coordinate.",
        ),
        (
            entry.axes in ("two", "three"),
            f"**Positions of one number**, as in plain text. A token must have {entry.axes}.",
        ),
        (
            bool(scheme.features),
            "**Layers that you cannot change.** Each layer projects "
            + ", ".join(f"`{name}`" for name in scheme.features)
            + " for it, as `posenc.models` do (`Encoding.with_projected` in your own).",
        ),
        (
            scheme.needs_raw_keys,
            "**Cheap decoding.** A cache keeps keys unrotated, and each step rotates all of them.",
        ),
    )
    lines = [words for holds, words in cases if holds]
    return "".join(f"- {words}\n" for words in (*lines, *([entry.avoid] if entry.avoid else [])))
