"""Verdicts on the paper's claims from known numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from secateur.report.records import read_records
from secateur.reproduction.claims import CLAIMS, checked
from secateur.reproduction.points import Results, results
from support.reproduced_runs import write_run


def verdicts(found: dict[str, Results]) -> dict[str, tuple[str, str]]:
    def find(names: Sequence[str]) -> Results | None:
        return next((found[name] for name in names if name in found), None)

    return {row["claim"]: (row["verdict"], row["evidence"]) for row in checked(find)}


def run(tmp_path: Path, recipe: str, **steps: list[list[tuple[float, float, float]]]) -> Results:
    methods = {name.replace("_", ":"): value for name, value in steps.items()}
    return results(recipe, read_records(write_run(tmp_path, recipe, [(2.0, 2.0)], methods)))


def test_without_results_nothing_is_claimed() -> None:
    assert {verdict for verdict, _ in verdicts({}).values()} == {"not tested here"} and len(CLAIMS) > 8


def test_sparser_than_every_rival(tmp_path: Path) -> None:
    far = [[(0.9, 12.0, 12.0)]]
    steps = {"pfp": [[(0.85, 2.4, 2.4)]], "ft": [[(0.8, 2.4, 2.4)]], "thinet": far}
    claim = "PFP gives sparser LeNets of commensurate accuracy than FT, SoftNet and ThiNet"
    assert verdicts({"lenet300100": run(tmp_path / "some", "lenet300100", **steps)})[claim][0] == "not tested here"
    found = verdicts({"lenet300100": run(tmp_path / "all", "lenet300100", **steps, softnet=far)})
    verdict, evidence = found[claim]
    assert verdict == "holds" and "PFP PR 85.0 (+0.40), best rival FT PR 80.0" in evidence  # ThiNet is not near
    assert found["LeNet-300-100: PR 84.32"][0] == "holds" and found["LeNet-5: PR 92.37"][0] == "not tested here"


def test_a_claim_that_fails_somewhere_and_holds_elsewhere(tmp_path: Path) -> None:
    less, more = [[(0.4, 2.0, 2.0)]], [[(0.9, 2.0, 2.0)]]
    good = run(tmp_path, "resnet20-short", pfp=[[(0.5, 2.0, 2.0)]], ft=less, softnet=less, thinet=less)
    bad = run(tmp_path, "vgg16-short", pfp=[[(0.5, 2.0, 2.0)]], ft=more, softnet=less, thinet=less)
    found = verdicts({"resnet20-short": good, "vgg16-short": bad})
    assert found["PFP gives sparser networks than FT, SoftNet and ThiNet on CIFAR-10"][0] == "holds in 1 of 2 cases"
    alone = verdicts({"vgg16-short": bad})
    assert alone["PFP gives sparser networks than FT, SoftNet and ThiNet on CIFAR-10"][0] == "does not hold"


def test_before_retraining_and_derandomized(tmp_path: Path) -> None:
    targets = [[(0.3, 3.0, 3.0)], [(0.5, 4.0, 4.0)]]
    worse = [[(0.3, 3.5, 3.5)], [(0.5, 3.9, 3.9)]]
    steps = {"pfp": targets, "ft": worse, "pfp_rand": [[(0.3, 2.9, 2.9)], [(0.5, 3.9, 3.9)]]}
    found = verdicts(
        {"deepknight": run(tmp_path, "deepknight", **steps), "lenet300100": run(tmp_path, "lenet300100", **steps)}
    )
    verdict, evidence = found["on the driving task PFP is best at every ratio without retraining"]
    assert verdict == "does not hold" and "best at 1 of 2 targets" in evidence
    assert found["before retraining derand errs a little more than rand"][0] == "holds"
    assert found["after retraining the difference is negligible"] == (
        "holds",
        "lenet300100: derand errs +0.10 points more than rand on average",
    )
