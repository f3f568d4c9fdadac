"""Load thousands of damaged and hostile files: each must be refused with a clear error or do no harm.

    python benchmarks/fuzz_loader.py                        # 10,000 files; writes results/fuzz_loader.json
    python benchmarks/fuzz_loader.py --count 500 --jobs 1   # fewer: prints only
    python benchmarks/fuzz_loader.py --replay plain:4711    # one of them again, with the whole error

The files are mutations of those in tests/fixtures, with seeds 0, 1, 2, ... Each is loaded in a child process that is
killed after a time limit; its peak memory is measured. The outcomes that are no failure:

refused               a SecateurError with a remedy
same                  it loads, and network, plan and info equal those of the original file: JSON has several ways to
                      write the same thing, with more spaces or in another order
other valid content   it loads as something else, with the checksums of that content: its writer could have saved such a
                      file. (Only for mutations that recompute the checksums, and for format 1, which has none.)

In addition, headers of the largest allowed size are loaded, each made costly to read; all must be refused.

Everything else is a failure: another exception, a crash, a hang, too much memory, an undetected difference.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import re
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from environment import options, prepare, progress_bar, tests_on_path, write_record

tests_on_path()

COUNT = 10_000
SECONDS, EXTRA_MB = 20.0, 100.0  # for one file; a graph is exported again, which alone takes a second or more
HEADER_MB = 300.0  # for a header of the largest size
GRAPH_SHARE = 20  # one file in 20 is of a plan with output="graph", which takes longest
PLAIN = ("plain", "scales", "tied", "double", "named", "format1", "format2", "format3")
NUMBERS = (-1, 0, 1, 2, 255, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**64, 10**30, 10**400, 0.5, -0.0, 1e308)
NUMBERS += (float("nan"), float("inf"))
TEXTS = ("", "../../etc/passwd", "/dev/zero", "\x1b[2J", "\ud800", "a" * 2000, "__class__", "zoo:lenet5", "x.py:make")
ODD = (None, True, [], {}, [[[]]], {"a": {"b": {}}}, *NUMBERS, *TEXTS)


@dataclass
class Subject:
    """An original file and its content."""

    name: str
    data: bytes
    make: Callable[[], torch.nn.Module]
    example: Tensor
    state: dict[str, Tensor]
    output: Tensor
    plan: Any
    info: Any

    @classmethod
    def of(cls, name: str) -> Subject:
        """Load one of the files in tests/fixtures."""
        from secateur.storage.checkpoint import load, read_info, read_plan
        from support.stored_networks import FOLDER, STORED

        path, stored = FOLDER / f"{name}.safetensors", STORED[name]
        network = load(path, stored.make()).eval()
        with torch.no_grad():
            output = network(stored.input)
        return cls(
            name,
            path.read_bytes(),
            stored.make,
            stored.input,
            network.state_dict(),
            output,
            read_plan(path),
            read_info(path),
        )


@dataclass(frozen=True)
class Outcome:
    """The outcome of loading one file."""

    subject: str
    seed: int
    kind: str
    outcome: str
    failed: bool
    detail: str = ""


def try_file(subject: Subject, seed: int, path: Path) -> Outcome:
    """Write one mutation, load it, and return the outcome."""
    import secateur as sc
    from secateur.storage.checkpoint import load, read_info, read_plan

    rng, data = random.Random(f"{subject.name}:{seed}"), subject.data
    while data == subject.data:
        kind, data, valid = mutate(subject.data, rng)
    valid = valid or subject.name == "format1"
    path.write_bytes(data)

    def result(outcome: str, failed: bool = False, detail: str = "") -> Outcome:
        return Outcome(subject.name, seed, kind, outcome, failed, detail)

    try:
        try:
            network = load(path, None if subject.name == "named" else subject.make())
            plan, info = read_plan(path), read_info(path)
        except sc.SecateurError as error:
            reason = re.sub(r"\d+", "#", str(error).replace(str(path), "FILE").splitlines()[0])[:70]
            return result("refused", failed=not error.remedy, detail=reason)
    except Exception as error:
        return result("crashed", True, "".join(traceback.format_exception(error))[-2000:])
    alike = same_state(network.state_dict(), subject.state)
    if alike and (plan, info) == (subject.plan, subject.info):
        with torch.no_grad():
            alike = torch.equal(network.eval()(subject.example), subject.output)
        if alike:
            return result("same")
    return result(
        "other valid content" if valid else "undetected difference", not valid, "plan or info" if alike else "tensors"
    )


def same_state(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Return whether two networks have the same bits."""
    return one.keys() == other.keys() and all(
        a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
        for a, b in ((one[name], other[name]) for name in one)
    )


def mutate(data: bytes, rng: random.Random) -> tuple[str, bytes, bool]:
    """Return one mutation: its kind, its bytes, and whether its checksums fit them."""
    end = 8 + int.from_bytes(data[:8], "little")
    kind = rng.choice(("flip", "flip", "cut", "splice", "size", "random", "header", "header", "sealed", "sealed"))
    if kind == "flip":
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            place = rng.randrange(*rng.choice(((0, 8), (8, end), (end, len(data)), (0, len(data)))))
            changed[place] ^= 1 << rng.randrange(8)
        return kind, bytes(changed), False
    if kind == "cut":
        place = rng.randrange(len(data))
        return kind, rng.choice((data[:place], data[place:], data + rng.randbytes(rng.randrange(1, 99)))), False
    if kind == "splice":
        start, to, length = rng.randrange(len(data)), rng.randrange(len(data)), rng.randrange(1, 64)
        block = rng.choice((data[start : start + length], b"", rng.randbytes(length), bytes(length)))
        return kind, data[:to] + block + data[to + rng.choice((0, length, len(block))) :], False
    if kind == "size":
        sizes = (0, 1, end - 9, end - 7, len(data) - 8, len(data), 2**31, 2**63, 2**64 - 1, rng.randrange(2**64))
        return kind, rng.choice(sizes).to_bytes(8, "little") + data[8:], False
    if kind == "random":
        body = rng.randbytes(rng.randrange(300))
        text = rng.choice((body, b"{" * 300, b"[" * 10**5, b'{"a":' * 10**4, body.hex().encode()))
        return kind, rng.choice((body, len(text).to_bytes(8, "little") + text)), False
    return (kind, *_edited(data, end, rng, seal_again=kind == "sealed"))


def _edited(data: bytes, end: int, rng: random.Random, *, seal_again: bool) -> tuple[bytes, bool]:
    """Return a file with another value, key or order somewhere in the header or the JSON within it."""
    from secateur.storage import container

    header, body = json.loads(data[8:end]), data[end:]
    inner = {key: json.loads(header["__metadata__"][key]) for key in ("plan", "aliases", "info")}
    root = rng.choice((header, inner["plan"], inner["plan"], inner["aliases"], inner["info"]))
    twice = False
    for _ in range(rng.choice((1, 1, 1, 3))):
        twice = _edit(root, rng) or twice
    metadata = header.get("__metadata__")
    if root is not header:
        for key, value in inner.items():
            metadata[key] = json.dumps(value)
    if seal_again and rng.random() < 0.2:  # other values in the tensors
        body = bytearray(body)
        place = rng.randrange(len(body))
        body[place : place + 8] = rng.choice((rng.randbytes(8), b"\xff" * 8, bytes(8)))[: len(body) - place]
        body = bytes(body)
    if seal_again:
        try:
            return container.assemble(header, body), True
        except Exception:  # a header too odd to have checksums
            if isinstance(metadata, dict):
                metadata.pop(container.METADATA_CHECKSUM, None)
    text = json.dumps(header)
    if twice:
        text = text[:-1] + "," + text[1:]
    return len(text).to_bytes(8, "little") + text.encode(errors="surrogatepass") + body, seal_again and not twice


def _edit(root: Any, rng: random.Random) -> bool:
    """Change one item of the JSON; return whether the header shall have every key twice."""
    holder, key = rng.choice([*_items(root)] or [(root, None)])
    how = rng.randrange(8)
    if key is None:
        root["new"] = rng.choice(ODD)
    elif how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder[rng.choice(TEXTS)] = holder.pop(key)
    elif how == 2 and isinstance(holder[key], list):
        rng.choice((holder[key].reverse, holder[key].clear, lambda: holder[key].append(rng.choice(ODD))))()
    elif how == 3 and isinstance(holder[key], int | float):
        holder[key] += rng.choice((-1, 1, 2**16))
    elif how == 4 and isinstance(holder, dict):
        holder[rng.choice(TEXTS)] = rng.choice(ODD)
    elif how == 5:
        return True
    else:
        holder[key] = rng.choice(ODD)
    return False


def _items(node: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield node, key
        yield from _items(node[key])


def _large() -> dict[str, Callable[[int], str]]:
    """Return functions that make headers of a given size that are costly to read."""
    return {
        "many keys": lambda size: "{" + ",".join(f'"{i:x}":0' for i in range(size // 11 - 1)) + "}",
        "fewer keys": lambda size: "{" + ",".join(f'"{i:x}":0' for i in range(10**6 - 1)) + "}",
        "numbers": lambda size: "[" + "7777777," * (size // 8 - 1) + "1]",
        "fewer numbers": lambda size: "[" + "7777," * (4 * 10**6 - 1) + "1]",
        "objects": lambda size: "[" + "{}," * (10**6 - 2) + "1]",
        "brackets": lambda size: "[" * size,
        "quotes": lambda size: '"' * size,
        "fewer quotes": lambda size: '"' * 4 * 10**6,
        "escapes": lambda size: '"' + "\\" * (size - 1),
        "a long text": lambda size: '{"__metadata__":{"a":"' + "\\u0041" * (size // 6 - 9) + '"}}',
        "wide letters": lambda size: '{"__metadata__":{"a":"' + "\U0001f600" * (size // 4 - 9) + '"}}',
        "digits": lambda size: "1" * size,
        "spaces": lambda size: " " * size,
    }


def try_large(seed: int, path: Path) -> Outcome:
    """Load a file with one of the costly headers and return the outcome."""
    import secateur as sc
    from secateur.storage.checkpoint import load
    from secateur.storage.container import HEADER_LIMIT

    name, make = list(_large().items())[seed]
    text = make(HEADER_LIMIT).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    del text
    _reset_peak()
    started = time.perf_counter()
    try:
        load(path)
    except sc.SecateurError as error:
        detail = f"{name}, {time.perf_counter() - started:.1f} s"
        return Outcome("large", seed, "large", "refused", not error.remedy, detail)
    except Exception as error:
        return Outcome("large", seed, "large", "crashed", True, f"{name}: {type(error).__name__}: {error}"[:300])
    return Outcome("large", seed, "large", "loaded", True, name)


def work(pipe: Connection) -> None:
    """Load the files that the parent asks for, and send each outcome with the memory it took."""
    prepare()
    subjects = {name: Subject.of(name) for name in (*PLAIN, "graph")}
    with tempfile.TemporaryDirectory() as folder:
        before = _reset_peak()
        assert len(b"x" * 2**26) == 2**26
        assert 60 < _peak_mb() - before < 200, "the memory of a process cannot be measured here"
        pipe.send("ready")
        while (asked := pipe.recv()) is not None:
            before = _reset_peak()
            name, seed, path = *asked, Path(folder) / "mutant.safetensors"
            found = try_large(seed, path) if name == "large" else try_file(subjects[name], seed, path)
            pipe.send((asdict(found), _peak_mb() - before))


def _reset_peak() -> float:
    """Reset the kernel's record of the peak; return the memory held now, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_mb()


def _peak_mb() -> float:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


class Child:
    """A process that loads one file after the other."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=work, args=(there,), daemon=True)
        self.process.start()
        there.close()
        assert self.pipe.recv() == "ready"

    def ask(self, subject: str, seed: int) -> dict[str, Any]:
        """Return the outcome of one file; a hang or a crash of the process is a failure."""
        found = {"subject": subject, "seed": seed, "kind": "", "failed": True, "detail": "", "mb": 0.0}
        try:
            self.pipe.send((subject, seed))
            if not self.pipe.poll(SECONDS):
                return found | {"outcome": f"took more than {SECONDS:.0f} s"}
            outcome, mb = self.pipe.recv()
        except (EOFError, OSError):
            return found | {"outcome": "the process died"}
        found |= outcome | {"mb": mb}
        limit = HEADER_MB if subject == "large" else EXTRA_MB
        return found if mb <= limit else found | {"outcome": f"took more than {limit:.0f} MB", "failed": True}

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()


def cases(count: int) -> list[tuple[str, int]]:
    """Return which file is mutated with which seed."""
    names = [("graph" if seed % GRAPH_SHARE == 0 else PLAIN[seed % len(PLAIN)]) for seed in range(count)]
    return [*zip(names, range(count)), *(("large", seed) for seed in range(len(_large())))]


def in_child(todo: list[tuple[str, int]], advance: Callable[[], None]) -> list[dict[str, Any]]:
    """Load some files in one child process, or in a new one after each failure."""
    done, child = [], Child()
    for subject, seed in todo:
        done.append(child.ask(subject, seed))
        if done[-1]["failed"]:
            child.stop()
            child = Child()
        advance()
    child.stop()
    return done


def run(count: int, jobs: int) -> None:
    """Load all files in child processes and write the record."""
    todo = cases(count)
    with progress_bar() as progress, ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task("mutated files", total=len(todo))
        children = [pool.submit(in_child, todo[i::jobs], lambda: progress.advance(task)) for i in range(jobs)]
        done = [found for child in children for found in child.result()]
    record(done)


def record(done: list[dict[str, Any]]) -> None:
    """Write and print the record."""
    large = sorted((found for found in done if found["subject"] == "large"), key=lambda found: found["seed"])
    failures = [{**found, "mb": round(found["mb"])} for found in done if found["failed"]]
    done = sorted((found for found in done if found["subject"] != "large"), key=lambda found: found["seed"])
    kinds = sorted({found["kind"] for found in done})
    content = {
        "files": len(done),
        "failures": failures,
        "outcomes": dict(Counter(found["outcome"] for found in done).most_common()),
        "by_kind": {
            kind: dict(Counter(found["outcome"] for found in done if found["kind"] == kind).most_common())
            for kind in kinds
        },
        "other_valid_content": dict(
            Counter(
                f"{'no checksums' if one['subject'] == 'format1' else 'checksums recomputed'}: other {one['detail']}"
                for one in done
                if one["outcome"] == "other valid content"
            )
        ),
        "by_file": dict(Counter(found["subject"] for found in done).most_common()),
        "refusals": dict(Counter(found["detail"] for found in done if found["outcome"] == "refused").most_common(60)),
        "most_memory_mb": round(max(found["mb"] for found in done), 1),
        "largest_headers": {found["detail"]: f"{found['outcome']}, {found['mb']:.0f} MB" for found in large},
        "limits": {"seconds": SECONDS, "mb": EXTRA_MB, "mb_of_the_largest_headers": HEADER_MB},
        "seeds": f"0 to {len(done) - 1}; the random generator of a file starts from 'NAME:SEED'",
    }
    if len(done) >= COUNT:
        write_record("fuzz_loader", content)
    shown = ("files", "outcomes", "by_kind", "other_valid_content", "most_memory_mb", "largest_headers")
    print(json.dumps({key: content[key] for key in shown}, indent=1))
    print(f"{len(content['failures'])} failures")


def main() -> None:
    """Read the command line and run."""
    parser = options(__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="of mutated files (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="child processes (default: %(default)s)")
    parser.add_argument("--replay", metavar="NAME:SEED", help="load one mutated file and print the outcome; no record")
    args = parser.parse_args()
    if args.replay:
        prepare()
        name, seed = args.replay.split(":")
        with tempfile.TemporaryDirectory() as folder:
            print(try_file(Subject.of(name), int(seed), Path(folder) / "mutant.safetensors"))
    else:
        run(args.count, args.jobs)


if __name__ == "__main__":
    main()
