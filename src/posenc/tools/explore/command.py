"""``posenc explore``: the page of the schemes in the browser, or as one file."""

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.tools.kit.command import SCHEMES, failed

if TYPE_CHECKING:
    import socket

PORT = 8765


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "explore",
        help="see how the schemes work, live in the browser",
        description="Opens a page with every scheme of the catalog, drawn live: where positions enter attention, the "
        "vectors, rotations and scores, a sentence of yours, measured curves and laws. It is served on this machine "
        "alone, and posenc behind it checks what the page computes. Ctrl-C ends it.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="write the page as one HTML file that needs nothing else, and end"
    )
    parser.add_argument("--schemes", default=[], **{**SCHEMES, "help": "also schemes of yours, my.py:MyScheme"})
    parser.add_argument(
        "--records",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="also curves of these folders of posenc compare or posenc extend",
    )
    parser.add_argument("--port", type=int, metavar="N", help=f"where to listen (default: {PORT}, or any that is free)")
    parser.add_argument("--no-browser", action="store_true", help="print the address, and open nothing")


def run(arguments: argparse.Namespace) -> int:
    """Serves the page until it is interrupted, or writes it. 0 done, 1 failed, 2 wrong use."""
    if arguments.port is not None and not 0 <= arguments.port < 2**16:
        return failed(f"--port must be from 0 to 65535, got {arguments.port} (see posenc explore --help)", code=2)
    if arguments.export is not None and arguments.port is not None:
        return failed("--port is for a page that is served, and --export writes a file: give one of them", code=2)
    if arguments.export is not None and arguments.export.suffix.lower() not in (".html", ".htm"):
        return failed(f"--export must end in .html, got {str(arguments.export)!r}", code=2)
    from posenc.tools.explore.content import content

    try:
        shown = content(arguments.schemes, arguments.records)
    except ValueError as error:
        return failed(f"{error} (see posenc explore --help)", code=2)
    if arguments.export is not None:
        return _export(shown, arguments.export)
    return _serve(shown, arguments.port, open_browser=not arguments.no_browser)


def _export(shown: dict[str, Any], path: Path) -> int:
    from posenc.tools.explore.page import explorer
    from posenc.tools.kit.files import require_writable, write_whole

    require_writable(path)
    whole = explorer(shown, server=False).encode()
    write_whole(path, whole)
    print(f"{path}  ({len(whole) / 1e6:.2f} MB; it needs no network)")
    return 0


def _serve(shown: dict[str, Any], port: int | None, *, open_browser: bool) -> int:
    import uvicorn

    from posenc.tools.explore.server import application

    listening = _listening(port)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    app = application(shown)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    print(f"The explorer: {address}  (Ctrl-C ends it)", flush=True)
    if open_browser:
        import webbrowser

        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
    return 0


def _listening(port: int | None) -> "socket.socket":
    """A socket on the loopback interface: at this port, or, where none is asked for and the usual one is taken, at any.
    ValueError where the one asked for is taken."""
    import socket

    for wanted in [PORT, 0] if port is None else [port]:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", wanted))
            listening.listen()  # a browser that comes before the server is ready waits
        except OSError as error:
            listening.close()
            if port is not None or not wanted:
                raise ValueError(f"--port {wanted} cannot be used: {error.strerror}") from None
            continue
        return listening
    raise AssertionError("unreachable: port 0 is any that is free")
