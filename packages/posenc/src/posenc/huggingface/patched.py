"""`Patched`: a model whose positional encoding posenc has replaced, and how to undo that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from torch import nn

from posenc.arguments import shown
from posenc.huggingface.attention import NAME
from posenc.huggingface.loading import OwnAttentionError
from posenc.positions.positions import Positions


class Patched:
    """A patched model, with a description of the changes and `undo`.

    >>> patched = patch(model, YaRN(4.0, 4096))
    >>> print(patched)
    >>> patched.undo()
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.changes: list[str] = []
        self._restore: list[Callable[[], None]] = []

    def undo(self) -> None:
        """Restores the model exactly. Calling it again changes nothing."""
        while self._restore:
            self._restore.pop()()

    def __enter__(self) -> Patched:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        done = "patched" if self._restore else "not patched"
        return "\n".join([f"{type(self.model).__name__}, {done}:", *(f"  {change}" for change in self.changes)])

    def on_undo(self, back: Callable[[], None]) -> None:
        """Registers a function that `undo` calls, the last one first."""
        self._restore.append(back)

    def replace(self, parent: nn.Module, name: str, new: nn.Module) -> None:
        """Sets a submodule until `undo`."""
        there, old = name in parent._modules, parent._modules.get(name)

        def back() -> None:
            parent._modules[name] = old  # in its place in the order
            if not there:
                del parent._modules[name]

        parent._modules[name] = new.train(parent.training)
        self.on_undo(back)

    def give(self, module: nn.Module, methods: Mapping[str, Callable[..., Any]]) -> None:
        """Gives a module other methods until `undo`, which accelerate's hooks call too."""
        for name, function in methods.items():
            place = "_old_forward" if name == "forward" and "_old_forward" in vars(module) else name
            self.on_undo(partial(_take_back, module, name, made := partial(function, module), vars(module).get(place)))
            vars(module)[place] = made

    def set(self, module: Any, name: str, value: Any) -> None:
        """Sets an attribute of a module or a configuration until `undo`."""
        was = getattr(module, name)
        self.on_undo(lambda: setattr(module, name, was))
        setattr(module, name, value)

    def watch_ids(self) -> None:
        """Makes `Positions` in place of position_ids an error by name until `undo`."""
        self.on_undo(transformer(self.model).register_forward_pre_hook(_check_ids, with_kwargs=True).remove)

    def through_posenc(self) -> None:
        """Makes posenc the attention implementation of all of the model's configurations until `undo`."""
        model: Any = transformer(self.model)
        configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
        before = [(config, getattr(config, "_attn_implementation_internal", None)) for config in configs.values()]

        def back() -> None:
            for config, name in before:
                config._attn_implementation_internal = name

        self.on_undo(back)
        was = model.config.get_text_config()._attn_implementation
        with suppress(OwnAttentionError):
            model.set_attn_implementation(NAME)
        if model.config.get_text_config()._attn_implementation != NAME:
            raise ValueError(
                f"{type(model).__name__} has its own attention, which cannot be replaced: posenc supports neither a "
                "scheme nor a scaling that depends on the length in it"
            )
        kind = type(text_config(model))
        for config in configs.values():  # a copied layer may have its own, which the model does not know
            if type(config) is kind:
                config._attn_implementation_internal = NAME
        if was != NAME:
            self.changes.append(f"attention: posenc instead of {was!r}")


def _take_back(module: nn.Module, name: str, made: Any, was: Any) -> None:
    for place in (name, "_old_forward"):  # hooks may have come or gone since
        if vars(module).get(place) is made:
            if place == name and was is None:
                vars(module).pop(place)
            else:
                vars(module)[place] = was or getattr(type(module), name).__get__(module)


def _check_ids(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    if isinstance(given.get("position_ids"), Positions) or any(isinstance(each, Positions) for each in args):
        raise ValueError(
            "position_ids must be a tensor (rows, tokens), got Positions: pass position_ids=positions.coords, and "
            "padding by attention_mask=(positions.document >= 0).long()"
        )


def transformer(model: nn.Module) -> Any:
    """The model of transformers inside wrappers such as those of PEFT and torch.compile."""
    from transformers import PreTrainedModel

    for module in model.modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, PreTrainedModel):
            return module
    raise ValueError(f"model must be a model of transformers, got {shown(model)}")


def text_config(base: Any) -> Any:
    """The configuration of the text part, which in most models is the whole."""
    return base.config.get_text_config()


def named(base: Any) -> str:
    """A model's name in errors: its class and its model_type."""
    return f"{type(base).__name__} ({text_config(base).model_type})"
