"""Draw docs/architecture.svg, the folders of the package in layers, from the imports in src/secateur.

    python docs/draw_architecture.py

tests/test_architecture.py uses the same reading of the imports, and checks that the drawing is up to date.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from html import escape
from itertools import accumulate, combinations, pairwise, permutations
from pathlib import Path
from random import Random
from statistics import mean

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "secateur"
PICTURE = ROOT / "docs" / "architecture.svg"

Graph = dict[str, set[str]]  # from a name to the names that it imports
Edge = tuple[str, str]
Item = str | tuple[Edge, int]  # in a row of the picture: a folder, or an arrow that passes by

ROW = 3  # folders side by side, so that the picture is readable on a phone
BOX, HEIGHT, GAP, LANE, PORT = 106, 58, 28, 8, 16
MARGIN, SPACE = 8, 7
LINE = 18  # characters of a description in a line
STARTS = 100  # of the search for the order in a row
STYLE = """
  .ground { fill: #ffffff; } text { fill: #1f2328; font: 10px system-ui, sans-serif; text-anchor: middle; }
  .name { font-size: 13px; font-weight: 600; } .box { fill: #f3f4f6; stroke: #8b949e; }
  .road { fill: #d9f0dd; stroke: #2f7d46; } .arrow { fill: none; stroke: #6e7781; stroke-width: 1.2; }
  .head { fill: #6e7781; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #16191d; } text { fill: #e6e8eb; } .box { fill: #262b31; stroke: #6e7781; }
    .road { fill: #1d3b28; stroke: #55a86f; } .arrow { stroke: #9aa4af; } .head { fill: #9aa4af; }
  }
"""


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Return the files of a package by the names of their modules.

    >>> modules()["secateur.network.modules"]
    PosixPath('.../src/secateur/network/modules.py')
    """
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(package: Path = PACKAGE) -> Graph:
    """Return the modules of the package that each of its modules imports, at the top or inside a function."""
    known = modules(package)
    return {name: set(_imported(name, path, known)) - {name} for name, path in known.items()}


def folders(graph: Graph) -> Graph:
    """Return the imports between the parts of a package: its folders, and the modules that lie beside them.

    >>> folders({"s.a.x": {"s.b.y", "s.a.z"}, "s.a.z": set(), "s.b.y": {"s.errors"}, "s.errors": set()})
    {'a': {'b'}, 'b': {'errors'}, 'errors': set()}
    """
    found: Graph = {}
    for name, used in graph.items():
        if "." in name:  # the package itself imports its public names from everywhere
            part = _part(name)
            found.setdefault(part, set()).update(_part(one) for one in used if "." in one and _part(one) != part)
    return found


def layers(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the names in layers, each as low as its imports allow: it imports only from the layers before it.

    >>> layers({"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": set()})
    [['c', 'd'], ['b'], ['a']]

    Raises:
        graphlib.CycleError: the imports go in a circle, which the error names.
    """
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    found = []
    while sorter.is_active():
        found.append(sorted(sorter.get_ready()))
        sorter.done(*found[-1])
    return found


def reduced(graph: Graph) -> Graph:
    """Return the graph without the imports that follow from others: of a > b > c and a > c only the first two.

    >>> reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    {'a': {'b'}, 'b': {'c'}, 'c': set()}
    """
    return {a: {b for b in used if not any(b in reached(graph, c) for c in used)} for a, used in graph.items()}


def reached(graph: Mapping[str, Collection[str]], start: str) -> set[str]:
    """Return everything that a name imports, directly or through others.

    >>> reached({"a": {"b"}, "b": {"c"}, "c": set(), "d": {"c"}}, "a") == {"b", "c"}
    True
    """
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def description(package: Path, folder: str) -> str:
    """Return the first line of a folder's docstring, without the full stop."""
    text = ast.get_docstring(ast.parse((package / folder / "__init__.py").read_text())) or ""
    return text.partition("\n")[0].removesuffix(".")


def svg(package: Path = PACKAGE) -> str:
    """Return the picture: a box for each folder above those that it imports, without arrows that follow from others."""
    parts = folders(imports(package))
    names = {name for name in parts if (package / name).is_dir()}
    graph = reduced({name: parts[name] & names for name in names})
    shared = sorted(name for name in parts.keys() - names - {"_version"} if not reached(parts, name) & names)
    rows = _ordered(_with_lanes(_rows(graph), graph), graph)
    width = max(map(_width, rows)) + 2 * MARGIN
    places = _places(rows, graph, width)
    tops = [MARGIN + (HEIGHT + GAP) * number for number in range(len(rows))]
    top_of = {item: top for top, row in zip(tops, rows, strict=True) for item in row}
    road = reached(graph, "pruning") | {"pruning"}
    end = tops[-1] + HEIGHT + 16
    height = end + 74
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width * 3 // 2}" viewBox="0 0 {width} {height}">',
        "<title>The folders of secateur and their imports</title>",
        f"<style>{STYLE}</style>",
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0 0 8 4 0 8z"/></marker>',
        f'<rect class="ground" width="{width}" height="{height}" rx="8"/>',
    ]
    lines += [_arrow(edge, graph, places, top_of) for edge in _edges(graph)]
    for name in sorted(names, key=lambda name: (top_of[name], places[name])):
        lines += _box(name, description(package, name), places[name], top_of[name], name in road)
    lines += [
        f'<rect class="box" x="{MARGIN}" y="{end}" width="{width - 2 * MARGIN}" height="36" rx="5"/>',
        _text(width / 2, end + 15, "Modules that every folder may use"),
        _text(width / 2, end + 29, ", ".join(shared)),
        _text(width / 2, end + 52, "An arrow points to an imported folder; imports that"),
        _text(width / 2, end + 65, "follow from others are left out. Green: used by sc.prune."),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _imported(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            targets = [f"{source}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            while target and target not in known:  # a name inside a module
                target = target.rpartition(".")[0]
            if target:
                yield target


def _part(module: str) -> str:
    return module.split(".")[1]


def _edges(graph: Graph) -> list[Edge]:
    return sorted((a, b) for a, used in graph.items() for b in used)


def _rows(graph: Graph) -> list[list[Item]]:
    """The folders in rows from the top; one with more users than imports moves up to its users, if there is room."""
    found = layers(graph)
    row_of = {name: number for number, names in enumerate(found) for name in names}
    users = {name: [user for user in graph if name in graph[user]] for name in graph}
    for name in [name for names in reversed(found) for name in names]:
        if len(users[name]) >= max(1, len(graph[name])):
            highest = min(row_of[user] for user in users[name]) - 1
            free = [row for row in range(row_of[name] + 1, highest + 1) if list(row_of.values()).count(row) < ROW]
            row_of[name] = max(free, default=row_of[name])
    return [[name for name in sorted(graph) if row_of[name] == row] for row in reversed(range(len(found)))]


def _with_lanes(rows: Sequence[Sequence[Item]], graph: Graph) -> list[list[Item]]:
    """The rows with an item for every arrow that passes by."""
    row_of = {item: number for number, row in enumerate(rows) for item in row}
    found = [list(row) for row in rows]
    for edge in _edges(graph):
        for row in range(row_of[edge[0]] + 1, row_of[edge[1]]):
            found[row].append((edge, row))
    return found


def _links(rows: Sequence[Sequence[Item]], graph: Graph) -> list[tuple[Item, Item]]:
    """The pieces of all arrows, each from one row to the next."""
    lanes = [item for row in rows for item in row if not isinstance(item, str)]
    found: list[tuple[Item, Item]] = []
    for edge in _edges(graph):
        found += pairwise([edge[0], *(lane for lane in lanes if lane[0] == edge), edge[1]])
    return found


def _ordered(rows: list[list[Item]], graph: Graph) -> list[list[Item]]:
    """The rows with the fewest crossings, then the shortest arrows, that a search from several starts finds."""
    links = _links(rows, graph)
    row_of = {item: number for number, row in enumerate(rows) for item in row}
    beside = [pair for pair in combinations(links, 2) if row_of[pair[0][0]] == row_of[pair[1][0]]]

    def cost(rows: Sequence[Sequence[Item]]) -> tuple[int, int]:
        place = {item: x for row in rows for item, x in zip(row, _packed(row), strict=True)}
        crossings = sum((place[a] - place[c]) * (place[b] - place[d]) < 0 for (a, b), (c, d) in beside)
        return crossings, sum(abs(place[a] - place[b]) for a, b in links)

    def improved(rows: list[list[Item]]) -> tuple[tuple[int, int], list[list[Item]]]:
        best, before = cost(rows), None
        while best != before:
            before = best
            for number, row in enumerate(rows):
                for order in _moves(row):
                    tried = [*rows[:number], order, *rows[number + 1 :]]
                    if (found := cost(tried)) < best:
                        best, rows = found, tried
        return best, rows

    chance = Random(0)
    starts = [[chance.sample(row, len(row)) for row in rows] for _ in range(STARTS)]
    return min((improved(start) for start in starts), key=lambda found: found[0])[1]


def _moves(row: Sequence[Item]) -> Iterator[list[Item]]:
    """The orders of a row with one item in another place."""
    for start, end in permutations(range(len(row)), 2):
        rest = [*row[:start], *row[start + 1 :]]
        yield [*rest[:end], row[start], *rest[end:]]


def _packed(row: Sequence[Item]) -> list[int]:
    """Twice the middle of each item of a row without gaps, counted from the middle of the row."""
    ends = list(accumulate(map(_size, row), initial=0))
    return [a + b - ends[-1] for a, b in pairwise(ends)]


def _size(item: Item) -> int:
    return BOX if isinstance(item, str) else LANE


def _width(row: Sequence[Item]) -> int:
    return sum(map(_size, row)) + SPACE * (len(row) - 1)


def _places(rows: list[list[Item]], graph: Graph, width: int) -> dict[Item, int]:
    """The middle of every item: near those that it is linked to, without overlaps."""
    near: dict[Item, list[Item]] = {item: [] for row in rows for item in row}
    for a, b in _links(rows, graph):
        near[a].append(b)
        near[b].append(a)
    places: dict[Item, float] = dict.fromkeys(near, width / 2)
    for sweep in range(40):
        for row in rows if sweep % 2 else reversed(rows):
            wanted = [mean(places[other] for other in near[item]) if near[item] else width / 2 for item in row]
            places.update(zip(row, _apart(row, wanted, width), strict=True))
    return {item: round(place) for item, place in places.items()}


def _apart(row: Sequence[Item], wanted: Sequence[float], width: int) -> list[float]:
    """The places nearest to those wanted at which neighbours do not overlap: blocks that touch move as one."""
    offsets = [0.0]
    for a, b in pairwise(row):
        offsets.append(offsets[-1] + (_size(a) + _size(b)) / 2 + SPACE)
    blocks: list[list[float]] = []
    for place, offset in zip(wanted, offsets, strict=True):
        blocks.append([place - offset])
        while len(blocks) > 1 and mean(blocks[-2]) > mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    least = MARGIN + _size(row[0]) / 2
    most = width - MARGIN - _size(row[-1]) / 2 - offsets[-1]
    starts = [min(max(mean(block), least), most) for block in blocks for _ in block]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]


def _arrow(edge: Edge, graph: Graph, places: Mapping[Item, int], top_of: Mapping[Item, int]) -> str:
    lanes = [item for item in places if not isinstance(item, str) and item[0] == edge]
    lanes.sort(key=lambda lane: lane[1])

    def port(name: str, edges: list[Edge], end: int) -> int:
        """Where the arrow meets the box, among all that do so on this side."""

        def next_place(other: Edge) -> int:
            passing = sorted((lane for lane in places if lane[0] == other), key=lambda lane: lane[1])
            return places[passing[0 if end else -1]] if passing else places[other[end]]

        edges = sorted(edges, key=lambda other: (next_place(other), other))
        return places[name] + round((edges.index(edge) - (len(edges) - 1) / 2) * PORT)

    x = port(edge[0], [one for one in _edges(graph) if one[0] == edge[0]], 1)
    y = top_of[edge[0]] + HEIGHT
    path = f"M{x} {y}"
    for lane in lanes:
        to, top = places[lane], top_of[lane]
        path += f"C{x} {y + GAP // 2} {to} {top - GAP // 2} {to} {top}V{top + HEIGHT}"
        x, y = to, top + HEIGHT
    to, top = port(edge[1], [one for one in _edges(graph) if one[1] == edge[1]], 0), top_of[edge[1]]
    path += f"C{x} {y + GAP // 2} {to} {top - GAP // 2} {to} {top - 1}"
    return f'<path class="arrow" d="{path}" marker-end="url(#head)"/>'


def _box(name: str, text: str, x: int, y: int, road: bool) -> Iterator[str]:
    kind = "box road" if road else "box"
    yield f'<rect class="{kind}" x="{x - BOX // 2}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="5"/>'
    yield _text(x, y + 17, name, "name")
    for number, line in enumerate(textwrap.wrap(text.replace("`", ""), LINE, break_on_hyphens=False)):
        yield _text(x, y + 35 + 13 * number, line)


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{kind and f" class={kind!r}"}>{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(svg())
