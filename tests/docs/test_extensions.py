"""What the site's own extensions make of docstrings, formulas and Markdown."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

import posenc
from posenc.schemes.catalog import CATALOG
from tests.docs.pages import ROOT

pytest.importorskip("sphinx", reason="the site is built with Python 3.11 or later")
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError


@pytest.fixture
def extension(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The one of docs/_ext that the test asks for."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    return importlib.import_module(request.param)


@pytest.mark.parametrize("extension", ["docstrings"], indirect=True)
def test_parameters_results_and_errors_stand_apart(extension: ModuleType) -> None:
    lines = [
        *(
            "Adds a bias. Returns (batch, heads) in float32. Raises ValueError for",
            "a `scale` of 0. Nothing is learned.",
            "",
        ),
        *("- ``scale`` (heads,): of which", "  one is enough.", "- ``bias``: any. Raises no error.", ""),
        *("One line of it.", "Errors: ValueError for a bias of 1."),
        *("", ">>> f(*x)"),
    ]
    assert extension.restructured(lines) == [
        *("Adds a bias. Nothing is learned.", "", ":returns: (batch, heads) in float32."),
        *("", ":raises ValueError: for a `scale` of 0.", ""),
        *("", ":param scale: (heads,): of which", "    one is enough.", ":param bias: any. Raises no error.", ""),
        *("One line of it.", "", ":raises ValueError: for a bias of 1.", "", ">>> f(*x)"),
    ]


@pytest.mark.parametrize("extension", ["mathml"], indirect=True)
def test_a_formula_that_is_not_understood_is_an_error(extension: ModuleType) -> None:
    assert "<mfrac>" in extension.mathml(r"\frac{1}{2}", "inline")
    for wrong in (r"\sqrt", r"\nosuchcommand x", "x^"):
        with pytest.raises(ExtensionError, match="is not understood"):
            extension.mathml(wrong, "block")


@pytest.mark.parametrize("extension", ["repository"], indirect=True)
def test_what_stands_beside_docs_is_no_dead_link(extension: ModuleType) -> None:
    source = ["[how](../CONTRIBUTING.md), [all](../README.md#which), [these](../examples), [it](../examples/window.py)"]
    extension.exchange(None, "page", source)
    assert source == ["[how](contributing.md), [all](index.md), these, [it](../examples/window.py)"]
    source = ["[it](../field/report.md#one)"]
    extension.exchange(None, "page", source)
    assert source == ["it"]
    source = ["[explorer](../explorer.md)"]
    extension.exchange(None, "learn/page", source)
    assert source == ["[explorer](../explorer.md)"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("extension", ["explorer"], indirect=True)
@pytest.mark.parametrize("exported", [True, False])
def test_a_frame_of_the_explorer(
    extension: ModuleType, exported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = tmp_path / "explorer.html"
    monkeypatch.setattr(extension, "EXPORT", export)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "page.rst").write_text("Page\n====\n\n.. explorer:: clocks&clocks.dim=64\n\n   make explore\n")
    (tmp_path / "index.rst").write_text("Index\n=====\n\n.. toctree::\n\n   deep/page\n")
    (tmp_path / "conf.py").write_text("extensions = ['explorer']\n")
    out = tmp_path / "out"
    app = Sphinx(tmp_path, tmp_path, out, tmp_path / "cache", "html", status=None, warning=sys.stderr)
    if not exported:
        with pytest.raises(ExtensionError, match=r"deep/page: the explorer's figure 'clocks.*' needs .*explorer.html"):
            app.build()
        return
    export.write_text("")
    app.build()
    page = (out / "deep" / "page.html").read_text()
    title = "Explorer: Each pair of channels is a clock"
    assert f'src="../_static/explorer.html#figure=clocks&amp;clocks.dim=64" title="{title}"' in page
    assert "make explore" not in page  # is for readers of the file


@pytest.mark.parametrize("extension", ["scheme_words"], indirect=True)
def test_a_model_is_written_with_what_need_be_said(extension: ModuleType) -> None:
    schemes = {
        "posenc.RoPE(16)": posenc.RoPE(16, base=10_000.0, layout="half"),
        "posenc.RoPE(16, base=500.0, axes=2)": posenc.RoPE(16, base=500.0, axes=2),
        "posenc.ALiBi(6, form='bidirectional')": posenc.ALiBi(6, "bidirectional"),
        "posenc.TransformerXL(6, 16)": posenc.TransformerXL(6, 16),
    }
    assert [extension.call(scheme) for scheme in schemes.values()] == [*schemes]
    models = {entry.name: extension.whole_model(entry) for entry in CATALOG}  # which run when the site is built
    for name, line in (
        ("alibi", "scheme = posenc.ALiBi(6)"),
        ("softcap", "scheme = posenc.RoPE(16) + posenc.Softcap(50.0)"),
        ("swin", "model = ImageClassifier("),
        ("segment", "positions=posenc.Positions.arange(64).with_segment("),
        ("rope_3d", "posenc.Positions.grid(4, 4, frames=2)"),
    ):
        assert line in models[name]
