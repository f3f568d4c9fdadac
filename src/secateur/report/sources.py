"""Read what the page can show: a sweep's folder, a pruned network, a comparison, a certificate, a timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from secateur.errors import SecateurError, UsageError, explained
from secateur.report.blocks import Result
from secateur.report.certificate import certificate
from secateur.report.comparison import comparison
from secateur.report.pruned import pruned
from secateur.report.records import read_records
from secateur.report.reproduction import reproduction
from secateur.report.study import study
from secateur.report.timing import timing
from secateur.storage.checkpoint import read_info, read_plan
from secateur.storage.container import parse

LIMIT = 2**28  # bytes of a JSON file
# A kind of JSON file: the keys that it must have, and the function that turns its content into a result. Another kind
# of result needs one more line here.
JSON_KINDS: dict[tuple[str, ...], Callable[[str, Mapping[str, Any]], Result]] = {
    ("statements", "assumption"): certificate,
    ("methods", "budgets", "measure", "rows"): comparison,
    ("networks", "speedup", "low", "high", "verdict"): timing,
    ("groups", "before", "after", "verification"): pruned,
    ("name", "title", "paper", "rows", "missing"): reproduction,
}


def read_source(source: str | Path) -> Result:
    """Return what the page shows of a file or folder.

    >>> read_source("small.safetensors").kind
    'pruned network'
    """
    path = Path(source)
    if not path.exists():
        raise UsageError(f"there is no {path}", remedy="name a sweep's folder, a .safetensors or a .json file")
    if path.is_dir():
        return study(read_records(path))
    if path.suffix == ".safetensors":
        plan = read_plan(path)
        groups = [{"name": one.name, "before": one.size, "after": len(one.kept)} for one in plan.groups]
        return pruned(path.name, read_info(path), groups)
    return _read_json(path)


def _read_json(path: Path) -> Result:
    with explained(f"{path} cannot be read", remedy="name a file that secateur wrote with --json or --out"):
        if path.stat().st_size > LIMIT:
            raise SecateurError(f"{path} has more than {LIMIT} bytes", remedy="name a file that secateur wrote")
        record = parse(path.read_text())
    return of_record(path.name, record)


def of_record(name: str, record: Any) -> Result:
    """Return what the page shows of plain data that secateur wrote as JSON."""
    for keys, read in JSON_KINDS.items():
        if isinstance(record, Mapping) and all(key in record for key in keys):
            with explained(f"{name} is damaged", remedy="write it again"):
                return read(name, record)
    raise UsageError(
        f"{name} is no comparison, certificate, timing or reproduction",
        remedy="use what secateur compare --out, certify --json, bench --json, prune --json or reproduce wrote",
    )
