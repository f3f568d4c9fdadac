"""`secateur profile`, and the table that it writes for `secateur prune`."""

from __future__ import annotations

import json
from pathlib import Path

from support.command_line import run


def test_a_table_for_prune(tmp_path: Path) -> None:
    file = tmp_path / "latency.json"
    result = run("profile", "zoo:lenet5", "--threads", "1", "--out", str(file))
    assert result.exit_code == 0 and "conv2.weight" in result.output and "Saved" in result.output
    refused = run("profile", "zoo:lenet5", "--out", str(file))
    assert refused.exit_code == 2 and "--force" in refused.output
    prune = ("prune", "zoo:lenet5", "--data", "embedded:digits", "--method", "ft")
    result = run(*prune, "--latency", "90%", "--latency-table", str(file), "--json")
    assert result.exit_code == 0 and "not timed here" in result.output
    assert json.loads(result.stdout)["settings"]["latency_table"] == str(file)
    other = run("prune", "zoo:lenet300100", *prune[2:], "--latency", "90%", "--latency-table", str(file))
    assert other.exit_code == 2 and "for another network" in other.output
    alone = run(*prune, "--params", "50%", "--latency-table", str(file))
    assert alone.exit_code == 2 and "belong to --latency" in alone.output
