"""Models of transformers as subjects: which function calls them and with what, first on small stand-ins with the same
interface, then on the library itself, where it is installed."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenc_check import Model, NotApplicableError, check, hugging_face


class Trunk(nn.Module):
    """One layer of attention over tokens with learned positions, and the keys and values of a cache."""

    def __init__(self, causal: bool, pad: int | None = None, size: int = 64, **config: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=size, pad_token_id=pad, **config)
        self.causal = causal
        self.embed, self.places, self.out = nn.Embedding(size, 16), nn.Embedding(2048, 16), nn.Linear(16, size)

    def attend(self, ids: Tensor, mask: Tensor | None, positions: Tensor | None, cache: Any) -> tuple[Tensor, Any]:
        before = 0 if cache is None else cache.size(1)
        line = torch.arange(before, before + ids.size(1))
        x = self.embed(ids) + self.places(line if positions is None else positions)
        every = x if cache is None else torch.cat((cache, x), 1)
        seen = torch.ones(len(ids), ids.size(1), every.size(1)).bool()
        if self.causal:
            seen = seen & (torch.arange(every.size(1)) <= line[:, None])
        if mask is not None:
            seen = seen & mask.bool()[:, None]
        elif positions is not None and cache is None:  # a position that does not go up by one begins a document
            document = (positions.diff(dim=-1, prepend=positions[:, :1] - 1) != 1).cumsum(-1)
            seen = seen & (document[:, :, None] == document[:, None])
        scores = (x @ every.mT).masked_fill(~seen, torch.finfo(x.dtype).min)
        return scores.softmax(-1) @ every, every


class Cache(SimpleNamespace):
    def get_seq_length(self) -> int:
        return self.kept.size(1)


class Decoder(Trunk):
    given: dict[str, Any]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> Any:
        self.given = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        self.given["use_cache"] = use_cache
        kept = None if past_key_values is None else past_key_values.kept
        x, kept = self.attend(input_ids, attention_mask, position_ids, kept)
        return SimpleNamespace(logits=self.out(x), past_key_values=Cache(kept=kept) if use_cache else None)


class ByIndex(Decoder):
    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, past_key_values: Any = None
    ) -> Any:
        return super().forward(input_ids, attention_mask, None, past_key_values, use_cache=True)


class Encoder(Trunk):
    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Any:
        return SimpleNamespace(last_hidden_state=self.attend(input_ids, attention_mask, position_ids, None)[0])


class EncoderByIndex(Encoder):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:  # type: ignore[override]
        return super().forward(input_ids, attention_mask)


class Vectors(nn.Module):
    config = SimpleNamespace(vocab_size=64)

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        return inputs_embeds


def decoder(**config: Any) -> nn.Module:
    return Decoder(True, **config)


def by_index() -> nn.Module:
    return ByIndex(True)


def encoder() -> nn.Module:
    return Encoder(False)


def encoder_by_index() -> nn.Module:
    return EncoderByIndex(False)


@pytest.mark.parametrize(
    ("subject", "call", "causal", "can"),
    [
        (hugging_face(decoder), "decode_with_positions", True, {"positions", "padding", "cache"}),
        (hugging_face(decoder, documents=True), "decode_packed", True, {"positions", "padding", "document", "cache"}),
        (hugging_face(by_index), "decode_by_index", True, {"padding", "cache"}),
        (hugging_face(encoder), "encode_with_positions", False, {"positions", "padding"}),
        (hugging_face(encoder_by_index), "encode_by_index", False, {"padding"}),
        (
            hugging_face(decoder, options={"is_decoder": False}),
            "encode_with_positions",
            False,
            {"positions", "padding"},
        ),
    ],
    ids=["decoder", "packed", "by index", "encoder", "encoder by index", "decoder as encoder"],
)
def test_what_forward_takes_decides_how_it_is_called(subject: Model, call: str, causal: bool, can: set[str]) -> None:
    assert (subject.call.__name__, subject.causal, subject.jitter, subject.dtype) == (call, causal, 0.2, torch.float32)
    assert {what for what in ("positions", "padding", "document", "cache", "queries") if subject.can(what)} == can


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (nn.Identity, {}, r"forward takes input_ids and attention_mask, got Identity with input"),
        (Vectors, {}, r"forward takes input_ids and attention_mask, got Vectors with inputs_embeds"),
        (decoder, {"size": 47}, r"vocab_size of at least 48 .* got vocab_size=47, pad_token_id=None"),
        (decoder, {"pad": 0}, r"pad_token_id of None or from 48 to vocab_size - 1, got vocab_size=64, pad_token_id=0"),
        (decoder, {"pad": 64}, r"got vocab_size=64, pad_token_id=64"),
    ],
)
def test_what_is_no_such_model_is_named(build: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hugging_face(build, options=options)


def test_without_padding_positions_come_with_a_mask_of_all_tokens_so_far() -> None:
    subject, model = hugging_face(decoder), decoder()
    ids, positions = torch.tensor([[1, 2]]), torch.tensor([[5, 9]])
    _, cache = subject.call(model, ids, positions=positions)
    assert model.given["attention_mask"].tolist() == [[1, 1]]
    assert model.given["position_ids"] is positions
    subject.call(model, ids, positions=positions, cache=cache)
    assert model.given["attention_mask"].tolist() == [[1, 1, 1, 1]]
    subject.call(model, ids)
    assert model.given["attention_mask"] is None
    assert model.given["position_ids"] is None


def test_packed_documents_are_told_by_positions_alone() -> None:
    subject, model = hugging_face(decoder, documents=True), decoder()
    ids, document = torch.tensor([[1, 2, 3]]), torch.tensor([[0, 0, 1]])
    subject.call(model, ids, positions=torch.tensor([[0, 1, 0]]), document=document)
    assert model.given["attention_mask"] is None
    assert not model.given["use_cache"]
    with pytest.raises(NotApplicableError, match="with no padding, and no cache"):
        subject.call(model, ids, document=document)
    with pytest.raises(NotApplicableError, match="with no padding, and no cache"):
        subject.call(model, ids, positions=torch.tensor([[0, 1, 0]]), document=torch.tensor([[0, -1, 1]]))
    for row in ([0, 1, 2], [0, 2, 0]):  # the next document goes on where the first ends; the first has a gap
        with pytest.raises(NotApplicableError, match="each unbroken, the next not following it"):
            subject.call(model, ids, positions=torch.tensor([row]), document=document)


def test_packing_is_checked() -> None:
    report = check(hugging_face(decoder, documents=True), checks=[11])
    assert report.results[0].status == "passed"
