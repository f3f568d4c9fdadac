"""Read thousands of mutated recipes: each must be a valid recipe or be refused with a clear error, within a second.

    python benchmarks/fuzz_recipes.py                  # 10,000 files; writes results/fuzz_recipes.json
    python benchmarks/fuzz_recipes.py --count 1000     # fewer: prints only
    python benchmarks/fuzz_recipes.py --replay 4711    # one of them again, with its text and the whole error

The files are mutations of the recipes of the package, with seeds 0, 1, 2, ... Failures are: an exception other than a
`SecateurError` with a remedy, more than a second of processor time, and memory that grows from file to file.
"""

from __future__ import annotations

import json
import random
import re
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from environment import options, peak_mb, prepare, progress_bar, write_record
from secateur.errors import SecateurError
from secateur.experiments import recipe as recipes

COUNT = 10_000
SECONDS, GROWTH_MB = 1.0, 20.0
WARM_UP = 200  # files after which the memory may no longer grow
VALUES = (
    *("", "~", "true", "no", "-1", "0", "1", "0.5", "1e400", ".inf", "-.inf", ".nan", "1_000", "0o17", "0x1f"),
    *("10000000000", "9" * 400, "9" * 5000, "0x" + "f" * 5000, "1" + ":1" * 5000, "2001-13-45", "2001-12-14"),
    *("[]", "{}", "[1, [2, [3]]]", "{a: {b: c}}", "[.nan, 0.5]", "[0.5, 0.5]", "[" * 2000, "{a: " * 500),
    *("&a [*a]", "*a", "<<", "!!python/object/apply:os.system ['true']", "!!binary x", "!!set {a}", "!own x"),
    *("'", '"', "|", ">", "? a", "- a", "%YAML 9.9", "---", "...", "\t", "\x00", "\ud83d", "\u2028", "é" * 3000),
    *("{steps: 1e9}", "{mean: 0.5, std: 0}", "{mean: [.nan], std: [1]}", "original", "test", "macs", "onecycle"),
    *("/dev/zero", "../../etc/passwd", "x.py:make", "lenet5-quick", "a" * 300, "a" * 70_000, "zoo:lenet5", "pfp"),
)
KEYS = (
    *("extends", "differs", "targets", "train", "prune", "retrain", "methods", "steps", "<<", "__class__", "", "a b"),
    *("weights", "normalise", "validation", "images", "recover", "resource", "cascade", "teacher", "schedule", "mean"),
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of reading one file."""

    seed: int
    kind: str
    outcome: str
    failed: bool
    seconds: float
    detail: str = ""


def mutate(text: str, rng: random.Random) -> tuple[str, str]:
    """Return one mutation: its kind and its text."""
    kind = rng.choice(("value", "value", "value", "key", "lines", "letters", "bomb", "nesting", "size"))
    lines = text.splitlines()
    place = rng.randrange(len(lines))
    if kind == "value":
        for _ in range(rng.choice((1, 1, 2, 4))):
            place = rng.randrange(len(lines))
            lines[place] = re.sub(r"(:|-) .*$", lambda found: f"{found[1]} {rng.choice(VALUES)}", lines[place], count=1)
    elif kind == "key":
        indent = re.match(" *", lines[place])[0]  # type: ignore[index]
        lines.insert(place, f"{indent}{rng.choice(KEYS)}: {rng.choice(VALUES)}")
    elif kind == "lines":
        block = lines[place : place + rng.randrange(1, 4)]
        where = rng.randrange(len(lines))
        lines = rng.choice((lines[:place] + lines[place + 1 :], lines[:where] + block + lines[where:], lines[:place]))
    elif kind == "letters":
        letters = list(text)
        for _ in range(rng.choice((1, 2, 8, 64))):
            letters[rng.randrange(len(letters))] = rng.choice(":-[]{}&*!|>'\"%@`#,? \n\tab01.~\x00\x85\ufeff")
        return kind, "".join(letters)
    elif kind == "bomb":
        width, height = rng.randrange(2, 12), rng.randrange(2, 40)
        bomb = ["a0: &a0 x", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, height))]
        lines = rng.choice((bomb + lines, [*bomb, f"targets: *a{height - 1}"], [*lines, *bomb]))
    elif kind == "nesting":
        depth = rng.choice((5, 17, 100, 5_000, 30_000))
        opened = rng.choice(("[", "{a: ", "- ", "? ", "a:\n" + " " * 3))
        lines.insert(place, rng.choice(("", "about: ")) + opened * depth)
    else:
        row = rng.choice(("k{}: 1", "- {}", "# {}", "about{}: x", " ", "[{}, 1]"))
        lines += [row.format(i) for i in range(rng.choice((10, 1_000, 5_000, 100_000)))]
    return kind, "\n".join(lines) + "\n"


def try_recipe(seed: int, folder: Path) -> Outcome:
    """Write one mutation, read it, and return the outcome."""
    rng = random.Random(seed)
    name = rng.choice(recipes.names())
    kind, text = mutate((recipes.FOLDER / f"{name}.yaml").read_text(), rng)
    path = folder / "mutant.yaml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    started = time.process_time()
    try:
        with at_most(10 * SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old keys are deprecated, not invalid
            recipes.read(path).to_json()
        outcome, failed, detail = "valid", False, ""
    except SecateurError as error:
        outcome, failed = "refused", not error.remedy
        detail = re.sub(r"\d+", "#", error.cause.replace(str(path), "FILE").splitlines()[0])[:50]
    except Exception as error:
        outcome, failed, detail = "crashed", True, "".join(traceback.format_exception(error))[-2000:]
    seconds = time.process_time() - started
    return Outcome(seed, kind, outcome, failed or seconds > SECONDS, seconds, detail)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError inside a block that takes more processor time; other processes do not count."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def run(count: int) -> None:
    """Read all files and write the record."""
    done, start_mb = list[Outcome](), 0.0
    with progress_bar() as progress, tempfile.TemporaryDirectory() as folder:
        task = progress.add_task("mutated recipes", total=count)
        for seed in range(count):
            done.append(try_recipe(seed, Path(folder)))
            if seed < WARM_UP:
                start_mb = peak_mb()
            progress.advance(task)
    growth = peak_mb() - start_mb
    kinds = sorted({one.kind for one in done})
    content = {
        "files": count,
        "failures": [vars(one) for one in done if one.failed],
        "outcomes": dict(Counter(one.outcome for one in done).most_common()),
        "by_kind": {kind: dict(Counter(one.outcome for one in done if one.kind == kind)) for kind in kinds},
        "refusals": dict(Counter(one.detail for one in done if one.outcome == "refused").most_common(40)),
        "slowest_seconds": round(max(one.seconds for one in done), 3),
        "memory_growth_mb": round(growth, 1),
        "limits": {"seconds": SECONDS, "memory_growth_mb": GROWTH_MB, "files_before_memory_is_compared": WARM_UP},
        "seeds": f"0 to {count - 1}",
    }
    if count >= COUNT:
        write_record("fuzz_recipes", content)
    print(json.dumps(content, indent=1))
    print(f"{len(content['failures'])} failures; memory {'grows' if growth > GROWTH_MB else 'does not grow'}")  # type: ignore[arg-type]


def main() -> None:
    """Read the command line and run."""
    parser = options(__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="of mutated files (default: %(default)s)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="read one mutated file and print the outcome")
    args = parser.parse_args()
    prepare()
    if args.replay is None:
        run(args.count)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = try_recipe(args.replay, Path(folder))
        print((Path(folder) / "mutant.yaml").read_text(errors="replace")[:3000])
        print(found)


if __name__ == "__main__":
    main()
