"""Draws docs/images/house.png: the rooms of posenc, how many lines each has, and which imports which.

    python docs/house.py

The rooms and their floors are those of import-linter's contracts in pyproject.toml; the arrows are the imports as they
are. An arrow is left out where another way leads there too, so that the picture shows no more than it must.
"""

import tomllib
from pathlib import Path

import grimp
from matplotlib import pyplot
from matplotlib.patches import FancyBboxPatch

from posenc.tools.kit.style import saved

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "house.png"
TOOLS = "posenc.tools"


def floors() -> list[list[str]]:
    """The rooms of each floor, from the roof down: the tools' contract stands above the library's."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = {contract["containers"][0]: contract["layers"] for contract in contracts if contract["type"] == "layers"}
    named = [[f"{TOOLS}.{room.strip()}" for room in floor.split("|")] for floor in layers[TOOLS]]
    named += [[f"posenc.{room.strip()}" for room in floor.split("|")] for floor in layers["posenc"]]
    return [kept for floor in named if (kept := [room for room in floor if room not in (TOOLS, "posenc.__main__")])]


def imports(rooms: list[str]) -> dict[str, set[str]]:
    """The rooms that each imports, without those that it reaches by way of another."""
    graph = grimp.build_graph("posenc")
    owner = {module: room for room in rooms for module in (room, *graph.find_descendants(room))}
    direct: dict[str, set[str]] = {room: set() for room in rooms}
    for module, room in owner.items():
        found = {owner.get(other, room) for other in graph.find_modules_directly_imported_by(module)}
        direct[room] |= found - {room}

    def reached(room: str) -> set[str]:
        return direct[room] | {far for near in direct[room] for far in reached(near)}

    return {room: {to for to in found if not any(to in reached(by) for by in found)} for room, found in direct.items()}


def lines(room: str) -> int:
    """How many lines of Python a room has."""
    path = ROOT / "src" / Path(*room.split("."))
    files = [path.with_suffix(".py")] if path.with_suffix(".py").exists() else path.rglob("*.py")
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def draw() -> None:
    plan = floors()
    rooms = [room for floor in plan for room in floor]
    figure, axes = pyplot.subplots(figsize=(10, 0.72 * len(plan)), layout="constrained")
    places = {}
    for height, floor in enumerate(reversed(plan)):
        for n, room in enumerate(floor):
            x, y = (n + 0.5) / len(floor), float(height)
            places[room] = (x, y)
            is_tool = room.startswith(TOOLS)
            axes.add_patch(
                FancyBboxPatch((x - 0.07, y - 0.25), 0.14, 0.5, "round,pad=0.004,rounding_size=0.02", lw=1,
                               fc="#e8eef7" if is_tool else "#fff3dc", ec="#51607a" if is_tool else "#9a7b32", zorder=2)
            )  # fmt: skip
            name = room.removeprefix("posenc.").replace("tools.", "tools/")
            axes.text(x, y + 0.09, name, ha="center", va="center", size=8.5, zorder=3)
            axes.text(x, y - 0.14, f"{lines(room):,} lines", ha="center", va="center", size=6.5, color="#555", zorder=3)
    for room, found in imports(rooms).items():
        for to in found:
            (x0, y0), (x1, y1) = places[room], places[to]
            bend = 0.0 if y0 - y1 == 1 else 0.25 if x1 <= x0 else -0.25  # past the floors between
            arrow = {"arrowstyle": "->", "color": "#888", "lw": 0.8, "connectionstyle": f"arc3,rad={bend}", "zorder": 1}
            axes.annotate("", (x1, y1 + 0.28), (x0, y0 - 0.28), arrowprops=arrow, zorder=1)
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.4, len(plan) - 0.5)
    axes.axis("off")
    PICTURE.write_bytes(saved(figure))


if __name__ == "__main__":
    draw()
    print(PICTURE.relative_to(ROOT))
