"""A model whose positions posenc has taken over, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from posenc.arguments import shown
from posenc.huggingface.attention import NAME


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
        self._exchanged: list[tuple[nn.Module, type]] = []

    def undo(self) -> None:
        """Restores the model exactly. Calling it again changes nothing. ValueError, and nothing is restored,
        while accelerate's hooks hold an attention of posenc's, or its class is one that was derived from posenc's."""
        for module, kind in self._exchanged:
            own = vars(module).get("forward")
            if own is not None and not _is_the_class_own(own, module):
                raise ValueError(
                    f"{type(module).__name__} got a forward of its own on the instance since it was patched, which "
                    "would run posenc's further: take it off with accelerate.hooks.remove_hook_from_submodules(model), "
                    "and undo() then"
                )
            if type(module) is not kind:
                raise ValueError(
                    f"{kind.__name__} was made {type(module).__name__} since it was patched, as fully_shard and "
                    "parametrizations do, and undo() would lose that: take it off, and undo() then"
                )
        self._exchanged.clear()
        while self._restore:
            self._restore.pop()()

    def __enter__(self) -> Patched:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        done = "patched" if self._restore else "as it was"
        return "\n".join([f"{type(self.model).__name__}, {done}:", *(f"  {change}" for change in self.changes)])

    def on_undo(self, back: Callable[[], None]) -> None:
        """Has this called by `undo`, before what it was told earlier."""
        self._restore.append(back)

    def replace(self, parent: nn.Module, name: str, new: nn.Module | None) -> None:
        """Sets a submodule; None takes it away. Remembers which was there."""
        there = name in parent._modules
        old = parent._modules.get(name)

        def back() -> None:
            if there:
                parent._modules[name] = old
            else:
                parent._modules.pop(name, None)

        if new is None:
            parent._modules.pop(name, None)
        else:
            new.train(parent.training)
            parent._modules[name] = new
        self.on_undo(back)

    def exchange(self, module: nn.Module, kind: type) -> None:
        """Makes the module one of another class. ValueError for one whose forward is the instance's own, as the hooks
        of accelerate make it: that of the class is not what runs."""
        was, own = type(module), vars(module).get("forward")
        if own is not None and not _is_the_class_own(own, module):
            raise ValueError(
                f"{was.__name__} has a forward of its own on the instance, as accelerate puts it there (device_map, "
                "offloading), so posenc's would not run: take it off with "
                "accelerate.hooks.remove_hook_from_submodules(model), patch or adapt, and dispatch the model again"
            )

        def back() -> None:
            module.__class__ = was
            vars(module).pop("forward", None)
            if own is not None:
                vars(module)["forward"] = own

        vars(module).pop("forward", None)
        module.__class__ = kind
        self._exchanged.append((module, kind))
        self.on_undo(back)

    def set(self, module: nn.Module, name: str, value: Any) -> None:
        """Sets an attribute that is no module."""
        was = getattr(module, name)
        self.on_undo(lambda: setattr(module, name, was))
        setattr(module, name, value)

    def through_posenc(self) -> None:
        """Sets posenc as the attention implementation, of every configuration that has another."""
        model: Any = transformer(self.model)
        configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
        before = [(config, getattr(config, "_attn_implementation_internal", None)) for config in configs.values()]

        def back() -> None:
            for config, name in before:
                config._attn_implementation_internal = name

        self.on_undo(back)
        was = model.config.get_text_config()._attn_implementation
        model.set_attn_implementation(NAME)
        if model.config.get_text_config()._attn_implementation != NAME:
            raise ValueError(
                f"{type(model).__name__} has an attention of its own, which takes no other: posenc can give it neither "
                "a scheme nor a scaling that depends on the length"
            )
        kind = type(text_config(model))
        for config in configs.values():  # a copied layer may have one of its own, which the model knows nothing of
            if type(config) is kind:
                config._attn_implementation_internal = NAME
        if was != NAME:
            self.changes.append(f"attention: through posenc, in place of {was!r}")


def _is_the_class_own(forward: Any, module: nn.Module) -> bool:
    """Whether a forward on the instance is that of its class: accelerate leaves it there when a hook is taken off."""
    return getattr(forward, "__func__", None) is type(module).forward and forward.__self__ is module


def transformer(model: nn.Module) -> Any:
    """The model of transformers inside of wrappers such as PEFT's or a compiled one."""
    from transformers import PreTrainedModel

    for module in model.modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, PreTrainedModel):
            return module
    raise ValueError(f"model must be a model of transformers, got {shown(model)}")


def text_config(base: Any) -> Any:
    """The configuration of the part that reads text, which is all of most models."""
    return base.config.get_text_config()


def named(base: Any) -> str:
    """A model as errors call it: its class and its model_type."""
    return f"{type(base).__name__} ({text_config(base).model_type})"
