"""What the server behind the page computes, and what it refuses."""

import json
import socket
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from torch import Tensor

import posenc
import posenc_lab
from posenc_lab.explore import server
from posenc_lab.explore.records import measures
from tests.compare import synthetic_records


def ask(address: str, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    """The status and the answer."""
    request = urllib.request.Request(
        f"{address}api/{path}", json.dumps(body).encode(), {"content-type": "application/json", **headers}
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            said = error.read().decode()
        return error.code, json.loads(said) if said.startswith("{") else said


def line(*places: int) -> list[list[int]]:
    return [[p] for p in places]


def array(x: Tensor) -> dict[str, Any]:
    return {"shape": list(x.shape), "data": x.flatten().tolist()}


def named(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "options": options}


def table(name: str, n: int = 2, **options: Any) -> dict[str, Any]:
    return {"scheme": named(name, **options), "positions": line(*range(n))}


ZEROS = {name: array(torch.zeros(1, 2, 2)) for name in ("query", "key", "value")} | {"positions": line(0, 1)}


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("table", table("my.py:Mine", dim=4), "scheme must be one of"),
        ("table", table("alibi", num_heads=4), "which has none"),
        (
            "table",
            table("learned", max_positions=10**9, dim=64),
            "max_positions must be at most 4096 here, got 1000000000",
        ),
        ("table", table("learned", max_positions=4096, dim=512), "may learn at most 1048576 numbers here, got options"),
        ("table", table("sinusoidal", dim=4, width=4), "cannot be built so"),
        (
            "attention",
            {"schemes": [named("rope", head_dim=2, scaling={"kind": "YaRN", "factor": 2.0})], **ZEROS},
            "missing 1 required positional argument: 'original_length'",
        ),
        ("attention", {"schemes": [], "window": 10**400}, "window.constrained-int: Input should be less than"),
        (
            "attention",
            {"schemes": [], **ZEROS, "query": {"shape": [1, 2, 2], "data": [0.0] * 3}},
            "query of shape (1, 2, 2) must have 4 numbers, got 3",
        ),
        ("numbers", named("kerple", num_heads=9999), "num_heads must be at most 4096 here, got 9999"),
        ("reading", {"name": "fire", "tokens": [1, 2]}, "name must be one of nope, rope, alibi, t5, got 'fire'"),
        ("reading", {"name": "rope", "tokens": [1, 256]}, "tokens.1: Input should be less than or equal to 255"),
        ("reading", {"name": "alibi", "tokens": [1, 2], "factor": 2.0}, "scaling is for rope, got alibi"),
        ("records", {"name": "a", "text": "{}\n"}, "a, line 1, is not a record (kind is missing)"),
        ("records", {"name": "a", "text": ""}, "a holds nothing that posenc compare or posenc extend measured"),
    ],
)
def test_what_the_server_refuses_it_says(address: str, path: str, body: Any, words: str) -> None:
    status, said = ask(address, path, body)
    assert status == 422
    assert words in said["error"]


def test_the_server_takes_no_other_host_and_no_frame(address: str) -> None:
    status, said = ask(address, "minilm", {}, Host="example.com")
    assert (status, said) == (400, "Invalid host header")
    with urllib.request.urlopen(address) as answer:
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "frame-ancestors" not in posenc_lab.show(posenc.ALiBi(2))._repr_html_()  # which is in one


def send(address: str, headers: str, *parts: bytes) -> tuple[str, Any]:
    """The status and what is said, to a request whose body these parts begin, and which does not end."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        connection.sendall(f"POST /api/minilm HTTP/1.1\r\nHost: {place.netloc}\r\n{headers}\r\n\r\n".encode())
        for part in parts:
            connection.sendall(part)
        head, _, said = connection.recv(2**16).decode().partition("\r\n\r\n")
        return head.partition("\r\n")[0].split()[1], json.loads(said or connection.recv(2**16).decode())["error"]


CHUNK = b"%x\r\n%s\r\n" % (2**11, b" " * 2**11)


@pytest.mark.parametrize(
    ("most", "headers", "parts", "said"),
    [
        (2**25, f"Content-Length: {2**25 + 1}", [b"{"], "33554432 bytes, got 33554433"),
        (2**12, "Transfer-Encoding: chunked", [CHUNK] * 3, "4096 bytes, got more"),
    ],
)
def test_the_server_takes_no_body_that_is_too_long(
    most: int, headers: str, parts: list[bytes], said: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.MAX_BODY_BYTES == 2**25
    monkeypatch.setattr(server, "MAX_BODY_BYTES", most)
    assert send(address, headers, *parts) == ("413", f"the body must have at most {said}")


def test_the_server_holds_few_bodies_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=30) as slow:
        slow.sendall(f"POST /api/minilm HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: 5000\r\n\r\n".encode())
        slow.sendall(b" " * 4999)
        assert ask(address, "attention", {"schemes": []})[0] == 422
        monkeypatch.setattr(server, "MAX_BYTES_IN_PROGRESS", 4000)
        said = "other requests hold 4999 bytes, of at most 4000: ask again later"
        assert send(address, "Content-Length: 9", b"{") == ("503", said)


def test_the_server_reads_records_that_are_dropped(address: str) -> None:
    text = "".join(json.dumps(record) + "\n" for record in synthetic_records.records())
    status, said = ask(address, "records", {"name": "mine.jsonl", "text": text})
    assert (status, said["name"], said["schemes"]) == (200, "mine.jsonl", list(synthetic_records.SCHEMES))
    assert said["task"] in measures()


GATES = torch.randn(1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SINKS = torch.tensor([0.5, 1.0], dtype=torch.float64)
PACKED = posenc.Positions.packed([4, 2])
SCALED = [
    named("rope", head_dim=4, scaling={"kind": "PositionInterpolation", "factor": 2.0}),
    named("alibi", num_heads=2),
]
CALLS: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "a scaled composition": (
        {"schemes": SCALED, "positions": line(*range(3, 9))},
        posenc.RoPE(4, scaling=posenc.PositionInterpolation(2.0)) + posenc.ALiBi(2),
        {"query_positions": posenc.Positions.arange(6, start=3)},
    ),
    **{
        f"documents, gates, sinks and {given}": (
            {
                "schemes": [named("fox", num_heads=2)],
                "positions": line(0, 1, 2, 3, 0, 1),
                "document": [0, 0, 0, 0, 1, 1],
                "sinks": array(SINKS),
                "features": {"forgotten": array(GATES.expand(2, 6))},
                **given,
            },
            posenc.FoX(2)(PACKED, dtype=torch.float64).with_projected({"forgotten": GATES.expand(1, 2, 6)}),
            {"sinks": SINKS, "window": window, "backend": "reference"},
        )
        for given, window in (({"window": [1, 0]}, (1, 0)), ({"chunk": 2}, posenc.Chunk(2)))
    },
}


@pytest.mark.parametrize("words", CALLS)
def test_the_server_computes_with_posenc(words: str, address: str) -> None:
    body, scheme, how = CALLS[words]
    q, k, v = torch.randn(3, 2, 6, 4, dtype=torch.float64)
    given = dict(zip(("query", "key", "value"), map(array, (q, k, v)), strict=True))
    status, said = ask(address, "attention", {**body, **given, "causal": True})
    assert status == 200
    wanted = posenc.attention(q[None], k[None], v[None], scheme, is_causal=True, **how)[0]
    torch.testing.assert_close(torch.tensor(said["out"]["data"], dtype=torch.float64).view(wanted.shape), wanted)
