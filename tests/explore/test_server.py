"""What the server behind the page computes, and what it refuses."""

import json
import socket
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

import posenc
from posenc.tools.explore import server


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


def line(n: int) -> list[list[int]]:
    return [[p] for p in range(n)]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("table", {"scheme": {"name": "sinus", "options": {"dim": 4}}, "positions": line(2)}, "scheme must be one of"),
        ("table", {"scheme": {"name": "alibi", "options": {"num_heads": 4}}, "positions": line(2)}, "which has none"),
        ("table", {"scheme": {"name": "sinusoidal", "options": {"dim": 4}}, "positions": []}, "positions: List should"),
        (
            "table",
            {"scheme": {"name": "learned", "options": {"max_positions": 10**9, "dim": 64}}, "positions": line(2)},
            "max_positions must be at most 4096 here, got 1000000000",
        ),
        (
            "table",
            {"scheme": {"name": "learned", "options": {"max_positions": 4096, "dim": 512}}, "positions": line(2)},
            "Learned may learn at most 1048576 numbers here, got options for 2097152",
        ),
        (
            "table",
            {"scheme": {"name": "sinusoidal", "options": {"dim": 4, "width": 4}}, "positions": line(2)},
            "cannot be built so",
        ),
        (
            "attention",
            {
                "schemes": [{"name": "rope", "options": {"head_dim": 2, "scaling": {"kind": "YaRN", "factor": 2.0}}}],
                **{name: {"shape": [1, 2, 2], "data": [0.0] * 4} for name in ("query", "key", "value")},
                "positions": line(2),
            },
            "missing 1 required positional argument: 'original_length'",
        ),
        (
            "table",
            {"scheme": {"name": "my.py:Mine", "options": {"dim": 4}}, "positions": line(2)},
            "scheme must be one of",
        ),
        (
            "table",
            {"scheme": {"name": "learned", "options": {"max_positions": 2, "dim": 4}}, "positions": line(3)},
            "Learned",
        ),
        ("attention", {"schemes": []}, "query: Field required"),
        ("attention", {"schemes": [], "window": 10**400}, "window.constrained-int: Input should be less than"),
        (
            "attention",
            {
                "schemes": [],
                **{name: {"shape": [1, 2, 2], "data": [0.0] * 3} for name in ("query", "key", "value")},
                "positions": line(2),
            },
            "query of shape (1, 2, 2) must have 4 numbers, got 3",
        ),
    ],
)
def test_what_the_server_refuses_it_says(address: str, path: str, body: Any, words: str) -> None:
    status, said = ask(address, path, body)
    assert status == 422
    assert words in said["error"]


def test_the_server_takes_no_other_host(address: str) -> None:
    status, said = ask(address, "minilm", {}, Host="example.com")
    assert (status, said) == (400, "Invalid host header")


def send(address: str, headers: str, *parts: bytes) -> tuple[str, str]:
    """The line of the status and what is said, to a request whose body these parts begin, and which does not end."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        connection.sendall(f"POST /api/minilm HTTP/1.1\r\nHost: {place.netloc}\r\n{headers}\r\n\r\n".encode())
        for part in parts:
            connection.sendall(part)
        head, _, said = connection.recv(2**16).decode().partition("\r\n\r\n")
        return head.partition("\r\n")[0], said or connection.recv(2**16).decode()


def test_the_server_takes_no_body_that_says_it_is_too_long(address: str) -> None:
    status, said = send(address, f"Content-Length: {server.MOST_BYTES + 1}", b"{")
    assert status.startswith("HTTP/1.1 413 ")
    assert json.loads(said) == {"error": "the body must have at most 33554432 bytes, got 33554433"}


def test_the_server_stops_at_the_limit_of_a_body_in_chunks(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_BYTES", 2**12)
    chunk = b"%x\r\n%s\r\n" % (2**11, b" " * 2**11)
    status, said = send(address, "Transfer-Encoding: chunked", *[chunk] * 3)
    assert status.startswith("HTTP/1.1 413 ")
    assert json.loads(said) == {"error": "the body must have at most 4096 bytes, got more"}


def test_the_server_holds_few_bodies_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=30) as slow:
        slow.sendall(f"POST /api/minilm HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: 5000\r\n\r\n".encode())
        slow.sendall(b" " * 4999)
        assert ask(address, "attention", {"schemes": []})[0] == 422
        monkeypatch.setattr(server, "MOST_HELD", 4000)
        status, said = send(address, "Content-Length: 9", b"{")
        assert status.startswith("HTTP/1.1 503 ")
        assert json.loads(said) == {"error": "other requests hold 4999 bytes, of at most 4000: ask again later"}


def test_the_server_takes_a_body_in_chunks(address: str) -> None:
    body = json.dumps({"scheme": {"name": "sinusoidal", "options": {"dim": 4}}, "positions": line(2)}).encode()
    request = urllib.request.Request(f"{address}api/table", iter([body[:9], body[9:]]))
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request) as answer:
        assert json.load(answer)["table"]["shape"] == [2, 4]


def test_no_page_may_show_the_servers_in_a_frame(address: str) -> None:
    with urllib.request.urlopen(address) as answer:
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "frame-ancestors" not in posenc.show(posenc.ALiBi(2))._repr_html_()  # which is in one


def test_the_server_takes_what_hides_keys_and_what_a_layer_projects(address: str) -> None:
    q, k, v = torch.randn(3, 1, 6, 4, dtype=torch.float64)
    gates = torch.randn(1, 6, dtype=torch.float64)
    positions = posenc.Positions.packed([4, 2])
    body = {
        "schemes": [{"name": "fox", "options": {"num_heads": 1}}],
        **{
            name: {"shape": list(x.shape), "data": x.flatten().tolist()}
            for name, x in (("query", q), ("key", k), ("value", v))
        },
        "positions": [[p] for p in (0, 1, 2, 3, 0, 1)],
        "document": [0, 0, 0, 0, 1, 1],
        "causal": True,
        "sinks": {"shape": [1], "data": [0.5]},
        "features": {"forgotten": {"shape": [1, 6], "data": gates.flatten().tolist()}},
    }
    encoding = posenc.FoX(1)(positions, dtype=torch.float64).with_projected({"forgotten": gates[None]})
    windows: list[tuple[dict[str, Any], Any]] = [({"window": [1, 0]}, (1, 0)), ({"chunk": 2}, posenc.Chunk(2))]
    for given, window in windows:
        status, said = ask(address, "attention", body | given)
        assert status == 200
        expected = posenc.attention(
            q[None],
            k[None],
            v[None],
            encoding,
            is_causal=True,
            window=window,
            sinks=torch.tensor([0.5], dtype=torch.float64),
            backend="reference",
        )
        torch.testing.assert_close(torch.tensor(said["out"]["data"], dtype=torch.float64), expected.flatten())


def test_the_server_computes_with_posenc(address: str) -> None:
    q, k, v = torch.randn(3, 2, 5, 4, dtype=torch.float64)
    body = {
        "schemes": [
            {"name": "rope", "options": {"head_dim": 4, "scaling": {"kind": "PositionInterpolation", "factor": 2.0}}},
            {"name": "alibi", "options": {"num_heads": 2}},
        ],
        **{
            name: {"shape": list(x.shape), "data": x.flatten().tolist()}
            for name, x in (("query", q), ("key", k), ("value", v))
        },
        "positions": [[p] for p in (3, 4, 5, 6, 7)],
        "causal": True,
    }
    status, said = ask(address, "attention", body)
    assert status == 200
    scheme = posenc.RoPE(4, scaling=posenc.PositionInterpolation(2.0)) + posenc.ALiBi(2)
    at = posenc.Positions.arange(5, start=3)
    wanted = posenc.attention(q[None], k[None], v[None], scheme, query_positions=at, is_causal=True)[0]
    got = torch.tensor(said["out"]["data"], dtype=torch.float64).reshape(said["out"]["shape"])
    torch.testing.assert_close(got, wanted)


def test_the_server_has_the_cameras_that_the_page_does_not_send(address: str) -> None:
    x = torch.randn(1, 4, 8, dtype=torch.float64)
    array = {"shape": [1, 4, 8], "data": x.flatten().tolist()}
    body = {
        "schemes": [{"name": "cameras", "options": {"head_dim": 8}}],
        **dict.fromkeys(("query", "key", "value"), array),
        "positions": [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]],
    }
    status, said = ask(address, "attention", body)
    assert status == 200
    scheme = posenc.Cameras(8, torch.eye(4)[None])
    wanted = posenc.attention(*(x[None],) * 3, scheme, query_positions=posenc.Positions.grid(2, 2, frames=1))[0]
    torch.testing.assert_close(torch.tensor(said["out"]["data"], dtype=torch.float64).reshape(wanted.shape), wanted)
