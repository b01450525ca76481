"""``posenc explore``: serves the explorer in the browser, or exports it as one HTML file."""

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.command.options import failed, refused
from posenc_lab.kit.command import SCHEMES

if TYPE_CHECKING:
    import socket

PORT = 8765


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "explore",
        help="explore the schemes interactively in the browser",
        description="Opens a page with interactive figures of every scheme of the catalog: where positions enter "
        "attention, vectors, rotations and scores, your own sentence, measured curves and laws. It is served on this "
        "machine only, and posenc verifies the numbers of the page. Press Ctrl-C to stop.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="write the page as one self-contained HTML file, and exit"
    )
    parser.add_argument("--schemes", default=[], **{**SCHEMES, "help": "add your own schemes, my.py:MyScheme"})
    parser.add_argument(
        "--records",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="add the curves of these folders of posenc compare or posenc extend",
    )
    parser.add_argument("--port", type=int, metavar="N", help=f"port (default: {PORT}, or any free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address without opening a browser")


def run(arguments: argparse.Namespace) -> int:
    """Serves the page until it is interrupted, or exports it. Exit codes 0: done; 1: failed; 2: wrong usage."""
    if arguments.port is not None and not 0 <= arguments.port < 2**16:
        return failed(f"--port must be from 0 to 65535, got {arguments.port} (see posenc explore --help)", code=2)
    if arguments.export is not None and arguments.port is not None:
        return failed("--port cannot be combined with --export, which serves nothing", code=2)
    if arguments.export is not None and arguments.export.suffix.lower() not in (".html", ".htm"):
        return failed(f"--export must end in .html, got {str(arguments.export)!r}", code=2)
    from posenc_lab.explore.content import content

    if arguments.schemes:
        print(f"computing {', '.join(arguments.schemes)}: laws take some seconds each", file=sys.stderr, flush=True)
    try:
        shown = content(arguments.schemes, arguments.records, is_saved=arguments.export is not None)
    except ValueError as error:
        return refused(error, "explore")
    if arguments.export is not None:
        return _export(shown, arguments.export)
    return _serve(shown, arguments.port, open_browser=not arguments.no_browser)


def _export(shown: dict[str, Any], path: Path) -> int:
    from posenc.command.files import require_writable, write_whole
    from posenc_lab.explore.page import explorer

    require_writable(path)
    whole = explorer(shown, server=False).encode()
    write_whole(path, whole)
    print(f"{path}  ({len(whole) / 1e6:.2f} MB; it needs no network)")
    return 0


def _serve(shown: dict[str, Any], port: int | None, *, open_browser: bool) -> int:
    import uvicorn

    from posenc_lab.explore.server import application

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
    """A socket on the loopback interface, at ``port``. Without one, at the default port, or at any if that is taken.
    ValueError if ``port`` is taken."""
    import socket

    for wanted in [PORT, 0] if port is None else [port]:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", wanted))
            listening.listen()  # so that a browser waits until the server is ready
        except OSError as error:
            listening.close()
            if port is not None or not wanted:
                raise ValueError(f"--port {wanted} cannot be used: {error.strerror}") from None
            continue
        return listening
    raise AssertionError("unreachable: port 0 is any that is free")
