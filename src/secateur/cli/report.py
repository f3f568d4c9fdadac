"""`secateur report`: results to look at, in the terminal, as a page or live."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from secateur.cli import options
from secateur.cli.inputs import check_out
from secateur.cli.options import OUTPUT, option
from secateur.cli.screen import TableScreen, unwrapped
from secateur.errors import UsageError
from secateur.report import sweep as findings
from secateur.report.latency import measure_latency
from secateur.report.live import Follower, serve
from secateur.report.page import write_page
from secateur.report.records import read_records
from secateur.report.sources import read_source

SOURCES = "A sweep's folder, a pruned .safetensors, or the .json of compare, certify, bench, prune or reproduce."
GRACE = 3.0  # seconds for which a live page is still served after the sweep has ended


def report(
    *,
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE", help=SOURCES, show_default=False)],
    out: Annotated[Path | None, option(OUTPUT, "FILE", "Write everything to see as one HTML file.")] = None,
    force: options.Force = False,
    title: Annotated[str | None, option(OUTPUT, "TEXT", "Title of the page.")] = None,
    live: Annotated[bool, option(OUTPUT, "", "Serve the page on this machine while a sweep works.", "--live")] = False,
    time_networks: Annotated[
        bool, option(OUTPUT, "", "Time the networks of a sweep first, for its charts.", "--time")
    ] = False,
    screen: TableScreen,
) -> None:
    """Show results: of one sweep in the terminal, of anything as a page (--out), of a working sweep live."""
    if out is not None:
        check_out(out, force)
    if live and (out is not None or screen.as_json or screen.as_csv):
        raise UsageError("--live serves a page and writes nothing", remedy="leave --out, --json and --csv out")
    for source in sources if time_networks else ():
        if source.is_dir():
            measure_latency(read_records(source), progress=screen.live)
    if live:
        _live(sources, screen)
    elif out is not None:
        with screen.status("reading"):
            results = [read_source(source) for source in sources]
        write_page(out, results, title=title, force=force)
        about = [{"source": str(source), "kind": one.kind} for source, one in zip(sources, results)]
        size = f"{out.stat().st_size / 1e6:.1f} MB"
        screen.show_table({"out": str(out), "sources": about}, about, unwrapped(f"Saved: {out} ({size})"))
    else:
        for source in sources:
            if not source.is_dir() and source.exists():
                raise UsageError(f"{source} has no text form", remedy="see it as a page: --out page.html")
        if len(sources) > 1:
            raise UsageError(f"{len(sources)} results do not fit a terminal", remedy="see them as a page: --out FILE")
        show_sweep(sources[0], screen)


def show_sweep(folder: Path, screen: TableScreen) -> None:
    """Print the results of a sweep: a table, the smallest accurate networks, and a curve."""
    found = findings.read_run(folder)
    screen.show_table(found.as_dict(), map(vars, found.rows), findings.as_text(found))


def _live(sources: list[Path], screen: TableScreen) -> None:
    for source in sources:
        read_source(source)  # what cannot be shown is refused here
    follower = Follower(sources)
    if not follower.unfinished():
        raise UsageError(
            f"{' and '.join(map(str, sources))}: nothing is at work there", remedy="see it as a page: --out page.html"
        )
    with serve(sources) as address:
        screen.log(f"live: {address} (Ctrl-C ends)")
        try:
            while follower.unfinished():
                time.sleep(1)
            time.sleep(GRACE)
        except KeyboardInterrupt:
            pass
    screen.log("ended")
