"""How long it takes to build the report page of a sweep and to open it in Chromium, and how large the file is.

python benchmarks/report_page.py     # writes results/report_page.json

The sweeps are written, not run: 5 methods and 10 targets, as many networks as give the number of runs. `open_seconds`
is the time until text, tables and networks are there and can be used, `chart_seconds` until the first chart is drawn;
`cpu_seconds` is the processor time of the page's main thread until then, which depends less on other work.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from environment import options, prepare, print_rows, tests_on_path, write_record

SIZES = (10, 100, 500, 1000, 5000)
METHODS, STEPS, EPOCHS = ("pfp", "residual", "ft", "softnet", "thinet"), 10, 30
OPENED, REQUIRED_RUNS, LIMIT_SECONDS, LIMIT_MB = 5, 500, 2.0, 6.0
DRAWN = "() => document.querySelector('.drawing')?.data !== undefined"


def measure(size: int, browser: Any, folder: Path) -> dict[str, Any]:
    """Build the page of a sweep with this number of runs, and open it several times."""
    from secateur.report.page import write_page
    from secateur.report.sources import read_source
    from support.written_sweeps import write_sweep

    methods = METHODS if size >= 50 else METHODS[:1]
    networks = max(1, size // (len(methods) * STEPS))
    source = write_sweep(folder / f"run{size}", networks=networks, methods=methods, steps=STEPS, epochs=EPOCHS)
    built = []
    for _ in range(3):
        started = time.perf_counter()
        page = write_page(folder / f"{size}.html", [read_source(source)], force=True)
        built.append(time.perf_counter() - started)
    opened, drawn, cpu = zip(*(open_page(browser, page) for _ in range(OPENED)))
    return {
        "runs": networks * len(methods) * STEPS,
        "file_mb": round(page.stat().st_size / 1e6, 2),
        "build_seconds": round(statistics.median(built), 3),
        "open_seconds": round(statistics.median(opened), 3),
        "open_seconds_least": round(min(opened), 3),
        "chart_seconds": round(statistics.median(drawn), 3),
        "cpu_seconds": round(statistics.median(cpu), 3),
        "other_work": f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors",
    }


def open_page(browser: Any, page: Path) -> tuple[float, float, float]:
    """Return the seconds until the page can be used and until its first chart, and the processor time until then."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    session = context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    started = time.perf_counter()
    tab.goto(page.as_uri())
    usable = time.perf_counter() - started
    tab.wait_for_function(DRAWN)
    seconds = time.perf_counter() - started
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    context.close()
    return usable, seconds, metrics["TaskDuration"]


def main() -> None:
    """Measure, print the table, and fail if a page of 500 runs is too large or takes too long."""
    options(__doc__).parse_args()
    prepare()
    tests_on_path()
    from support.browser import running

    with tempfile.TemporaryDirectory() as folder, running() as browser:
        version = browser.version
        rows = [measure(size, browser, Path(folder)) for size in SIZES]
    write_record(
        "report_page", {"chromium": version, "limits": {"mb": LIMIT_MB, "seconds": LIMIT_SECONDS}, "rows": rows}
    )
    print_rows(
        {
            "runs": "runs",
            "file, MB": "file_mb",
            "build, s": "build_seconds",
            "open, s": "open_seconds",
            "least": "open_seconds_least",
            "chart, s": "chart_seconds",
            "of the processor": "cpu_seconds",
        },
        rows,
    )
    row = next(row for row in rows if row["runs"] == REQUIRED_RUNS)
    if row["file_mb"] >= LIMIT_MB or row["open_seconds"] >= LIMIT_SECONDS:
        raise SystemExit(f"the page of {REQUIRED_RUNS} runs is too large or opens too slowly: {row}")


if __name__ == "__main__":
    main()
