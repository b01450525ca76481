"""``posenc explore`` and ``posenc_lab.show``, as a user has them."""

import base64
import gzip
import html
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

import posenc
import posenc_lab
from posenc.command.cli import main


def data_of(page: str) -> Any:
    """The data that a page holds."""
    (text,) = re.findall(r'id="data">(.*?)</script>', page, re.S)
    return json.loads(gzip.decompress(base64.b64decode(text)))


def test_the_export_is_one_file_with_schemes_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "explored.py").write_text(
        "from posenc import Scheme\n"
        "from posenc.encoding.terms import Bias, Distance\n"
        "class Mine(Scheme):\n"
        "    def score(self, query_positions, key_positions, context=None):\n"
        "        return (Bias(lambda r: -2.0 * r.abs()[None], Distance('Mine')),)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["explore", "--export", "explorer.html", "--schemes", "rope+alibi,explored.py:Mine"]) == 0
    assert "explorer.html  (" in capsys.readouterr().out
    text = (tmp_path / "explorer.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in html.unescape(text)
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
    data = data_of(text)
    assert "rope+alibi" in data["numbers"]
    assert len(data["numbers"]["xpos"]) == 5  # settings that a page without a server has
    assert data["server"] is False
    (numbers,) = data["numbers"]["explored.py:Mine"]
    assert numbers["effect"]["data"][32:35] == [0, -2, -4]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--export", "page.txt"], "--export must end in .html, got 'page.txt'"),
        (["--port", "70000"], "--port must be from 0 to 65535, got 70000"),
        (["--export", "page.html", "--port", "80"], "--port cannot be combined with --export"),
        (["--schemes", "sinus", "--export", "page.html"], "scheme must be one of"),
        (["--records", "nowhere", "--export", "page.html"], "nowhere"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["explore", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["explore", "--port", str(port), "--no-browser"]) == 1
    assert f"--port {port} cannot be used: Address already in use" in capsys.readouterr().err


@pytest.mark.more
def test_it_serves_until_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "posenc", "explore", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        said = running.stdout.readline()
        address = re.findall(r"http://127\.0\.0\.1:\d+/", said)[0]
        with urllib.request.urlopen(address) as answer:
            assert "posenc explorer" in answer.read().decode()
            assert "connect-src 'self'" in answer.headers["content-security-policy"]
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=30) == 0
        assert running.stderr.read() == ""


def test_show_holds_what_posenc_computes() -> None:
    scheme = posenc.DistanceAware(3)
    with torch.no_grad():
        scheme.w.copy_(torch.tensor([0.0, 0.1, -0.1]))
    frame = posenc_lab.show(scheme)._repr_html_()
    page = html.unescape(re.findall(r'srcdoc="(.*?)" style', frame, re.S)[0])
    (seen,) = data_of(page)["seen"]
    assert (seen["name"], seen["shape"]) == ("DistanceAware", [3, 65, 65])
    values = torch.tensor(seen["values"], dtype=torch.float64).reshape(seen["shape"])
    r = torch.arange(65)
    wanted = scheme.double().factor((r - r[:, None]).abs().double()).detach()
    # In float32: of a factor below 2 the logarithm, of numbers up to 7, and the exponential.
    torch.testing.assert_close(values, wanted, rtol=0, atol=8 * 2.0**-24 * 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("alibi",), "scheme must be"),
        ((posenc.NoPE(), 0), "height must be"),
        ((torch.nn.Linear(2, 2),), "scheme must be"),
    ],
)
def test_what_cannot_be_shown(given: tuple[object, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        posenc_lab.show(*given)  # type: ignore[arg-type]
