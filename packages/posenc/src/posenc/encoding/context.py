"""`Context`: what a scheme may need besides positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from posenc.arguments import check_type, shown
from posenc.encoding.features import Feature


@dataclass(frozen=True, eq=False)
class Context:
    """What a scheme may need besides positions when it is bound.

    - ``heads``: the range of the scheme's heads that this shard of the queries has. None: all heads.
    - ``kv_heads``: the heads of keys that it has, for schemes whose ``heads_of`` is "key". None: the same as ``heads``.
    - ``lengths`` (rows,) or (1,): the length of each row's text, for scalings that depend on it. None: the lengths of
      the positions, row by row.
    """

    heads: range | None = None
    lengths: Tensor | None = None
    kv_heads: range | None = None

    def __post_init__(self) -> None:
        for name, heads in (("heads", self.heads), ("kv_heads", self.kv_heads)):
            check_type(name, heads, range, None)
            if heads is not None and (heads.step != 1 or len(heads) == 0):
                raise ValueError(f"{name} must be a non-empty range of step 1, got {heads}")
        if self.lengths is not None and (not isinstance(self.lengths, Tensor) or self.lengths.dim() != 1):
            raise ValueError(f"lengths must be a tensor (rows,) or None, got {shown(self.lengths)}")

    def of_heads(self, parameter: Tensor, axis: int) -> Tensor:
        """The slice of a parameter for this shard's heads along ``axis``. Raises ValueError for heads out of range."""
        if self.heads is None:
            return parameter
        if self.heads.stop > parameter.size(axis):
            raise ValueError(f"heads must be within the {parameter.size(axis)} of the scheme, got {self.heads}")
        return parameter.narrow(axis, self.heads.start, len(self.heads))

    def _check_heads(self, scheme: str, num_heads: object) -> None:
        """ValueError for heads beyond those that a scheme was made for, if it was made for a number of heads."""
        if self.heads is not None and isinstance(num_heads, int) and self.heads.stop > num_heads:
            raise ValueError(
                f"heads must be within the {num_heads} of {scheme}, got {self.heads}: make the scheme for all heads of "
                "the model, of which a shard has some"
            )

    def _of_keys(self) -> Context:
        """The context whose heads are those of the keys."""
        return self if self.kv_heads is None else replace(self, heads=self.kv_heads)

    def _heads_of(self, feature: Feature) -> range | None:
        """The feature's heads that this shard has."""
        return (self._of_keys() if feature.rotates else self).heads

    def _part(self, heads: slice, kv_heads: slice) -> Context:
        """The context of some of these heads of queries and keys."""
        first = 0 if self.heads is None else self.heads.start
        of_keys = first if self.kv_heads is None else self.kv_heads.start
        return replace(
            self,
            heads=range(first + heads.start, first + heads.stop),
            kv_heads=range(of_keys + kv_heads.start, of_keys + kv_heads.stop),
        )
