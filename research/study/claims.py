"""Checks the claims of ``claims.json`` of `posenc_lab.choose`, whose documentation has their form."""

from collections.abc import Mapping
from typing import Any

from posenc.arguments import check_choice, whole
from posenc_lab.choose.evidence import TEXTS
from posenc_lab.kit.files import require
from posenc_lab.kit.statistics import MIN_SEEDS

PUBLISHED = ("lower", "higher", "tied")
VERDICTS = (*PUBLISHED, "undecided")
AGREES = ("yes", "no", "undecided")
_PUBLISHED = {"claim": str, "verdict": str, "source": str, "url": str}
_MEASURED = {"mean": float, "low": float, "high": float, "verdict": str, "seeds": int, "agrees": str}


def agrees(published: str, found: str) -> str:
    """Whether a verdict equals the published one: "yes", "no", or "undecided" if the verdict is undecided."""
    if found == "undecided":
        return "undecided"
    return "yes" if found == published else "no"


def check(claim: Mapping[str, Any]) -> None:
    """ValueError, with the claim's name, for a missing value, a wrong type or a contradiction."""
    place = str(claim.get("name", "a claim without a name"))
    kinds = {"name": str, "question": str, "contrast": list, "length": int, "published": dict, "ours": dict}
    try:
        _only(claim, kinds)
        if len(claim["contrast"]) != 2 or not all(isinstance(scheme, str) for scheme in claim["contrast"]):
            raise ValueError(f"contrast must be two schemes, got {claim['contrast']}")
        whole("length", claim["length"])
        place = f"{claim['name']}, published"
        _only(claim["published"], _PUBLISHED)
        check_choice("verdict", claim["published"]["verdict"], PUBLISHED)
        place = f"{claim['name']}, ours"
        if set(claim["ours"]) != set(TEXTS):
            raise ValueError(f"must have the texts {', '.join(TEXTS)}, got {', '.join(claim['ours']) or 'none'}")
        for text, found in claim["ours"].items():
            place = f"{claim['name']}, ours, {text}"
            if found is not None:
                _check_found(found, claim["published"]["verdict"])
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _check_found(found: Any, published: str) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"must be null or an object, got {found!r}")
    require(found, {"status": str})
    check_choice("status", found["status"], ("measured", "not run"))
    if found["status"] == "not run":
        _only(found, {"status": str, "why": str})
        return
    _only(found, {"status": str, **_MEASURED})
    low, mean, high, verdict = (found[name] for name in ("low", "mean", "high", "verdict"))
    if not low <= mean <= high:
        raise ValueError(f"mean must be from low to high, got {mean} of {low} to {high}")
    whole("seeds", found["seeds"], least=MIN_SEEDS)
    check_choice("verdict", verdict, VERDICTS)
    if (verdict == "lower" and high >= 0) or (verdict == "higher" and low <= 0):
        raise ValueError(f"verdict must be of an interval without zero, got {verdict!r} of {low} to {high}")
    check_choice("agrees", found["agrees"], AGREES)
    if found["agrees"] != (right := agrees(published, verdict)):
        raise ValueError(
            f"agrees must be {right!r}, since {published!r} is published and {verdict!r} was found, "
            f"got {found['agrees']!r}"
        )


def _only(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """ValueError unless the values have exactly these names and types."""
    require(values, kinds)
    if unknown := values.keys() - kinds.keys():
        raise ValueError(f"must have {', '.join(kinds)} alone, got {', '.join(sorted(unknown))}")
