"""The benchmarks: what each measures, how it is run, and which packages its record names.

Every entry is a script `benchmarks/NAME.py` that writes `results/NAME.json`. `measures` are the parts of the package
whose changes make the record stale; folders and single modules both work.
"""

from __future__ import annotations

from dataclasses import dataclass

CUT = ("secateur.network", "secateur.channels", "secateur.tracing", "secateur.surgery")
PRUNE = (*CUT, "secateur.costs", "secateur.methods", "secateur.refit", "secateur.pruning")
TRAIN = ("secateur.training", "secateur.data", "secateur.zoo.lenet")


@dataclass(frozen=True)
class Benchmark:
    """One script and its record. `{data}` and `{runs}` in the commands stand for folders that the user names."""

    name: str
    measures: tuple[str, ...]
    arguments: str = ""
    before: tuple[tuple[str, str], ...] = ()  # files that the script reads, and the commands that make them
    packages: tuple[str, ...] = ()  # beside python, secateur, torch and numpy, whose versions every record has

    @property
    def command(self) -> str:
        """The command that writes the record."""
        return f"python benchmarks/{self.name}.py {self.arguments}".strip()


PAPER_LENETS = tuple(
    (
        f"{{runs}}/{recipe}/network-{k}/original.safetensors",
        f"secateur train {recipe} --network {k} --data {{data}} --out {{runs}}/{recipe} --resume",
    )
    for recipe in ("lenet300100", "lenet5")
    for k in range(3)
)
DATA, RUNS = "--data {data}", "--runs {runs}"

# In the order in which they run: the quick ones first.
BENCHMARKS = (
    Benchmark("certificates", ("secateur.certificates",), packages=("scipy",)),
    Benchmark("checkpoints", ("secateur.zoo", "secateur.data", "secateur.training.evaluation"), DATA),
    Benchmark("trace_speed", CUT, packages=("torchvision", "torch-pruning", "ultralytics")),
    Benchmark("load_speed", ("secateur.storage", "secateur.surgery"), packages=("torchvision", "safetensors")),
    Benchmark("report_page", ("secateur.report",), packages=("jinja2", "plotly", "playwright")),
    Benchmark("train_speed", ("secateur.training",)),
    Benchmark("sensitivity_speed", ("secateur.network", "secateur.methods.pfp"), DATA, packages=("torchvision",)),
    Benchmark(
        "reproduce_quick", (*PRUNE, "secateur.experiments", "secateur.training"), f"{DATA} {RUNS}/reproduce-quick"
    ),
    Benchmark("killed_sweep", ("secateur.experiments", "secateur.training", "secateur.storage")),
    Benchmark("ray_sweep", ("secateur.experiments", "secateur.training", "secateur.storage"), packages=("ray",)),
    Benchmark("onnx_resnet56", (*PRUNE, "secateur.storage.export"), DATA, packages=("onnx", "onnxruntime")),
    Benchmark(
        "int8",
        (*PRUNE, "secateur.storage.export", "secateur.storage.quantize"),
        f"{DATA} {RUNS}/int8",
        packages=("torchvision", "onnx", "onnxruntime"),
    ),
    Benchmark("certify_networks", (*PRUNE, "secateur.certificates"), DATA, packages=("scipy",)),
    Benchmark("theory", (*PRUNE, "secateur.certificates", "secateur.theory"), DATA, packages=("scipy",)),
    Benchmark("depthwise", PRUNE, DATA, packages=("torchvision",)),
    Benchmark("speedup", PRUNE, packages=("torchvision",)),
    Benchmark("latency", (*PRUNE, "secateur.profiling"), DATA, packages=("torchvision",)),
    Benchmark("prune_time", PRUNE, DATA, packages=("torchvision", "torch-pruning")),
    Benchmark("little_memory", PRUNE, DATA, packages=("torchvision", "timm")),
    Benchmark("effort", (*PRUNE, "secateur.training"), DATA, packages=("torchvision",)),
    Benchmark("round_trip", (*CUT, "secateur.storage"), packages=("torchvision", "timm", "safetensors")),
    Benchmark("fuzz_loader", ("secateur.storage", "secateur.surgery.plan"), packages=("safetensors",)),
    Benchmark("fuzz_cli", ("secateur.cli",), packages=("typer",)),
    Benchmark(
        "fuzz_recipes", ("secateur.experiments.recipe", "secateur.experiments.yaml_settings"), packages=("PyYAML",)
    ),
    Benchmark("random_budgets", (*CUT, "secateur.costs", "secateur.methods.pfp", "secateur.pruning")),
    Benchmark("train_lenets", ("secateur.zoo.lenet",), f"{DATA} --out {{runs}}"),
    Benchmark(
        "guarantee",
        ("secateur.methods.pfp", "secateur.certificates.bounds"),
        f"{DATA} --weights {{runs}}",
        before=(("{runs}/lenet5-seed0.safetensors", "python benchmarks/train_lenets.py --data {data} --out {runs}"),),
        packages=("scipy",),
    ),
    Benchmark("lenet5_quick", (*PRUNE, *TRAIN, "secateur.experiments"), f"{DATA} --out {{runs}}/lenet5-quick"),
    Benchmark("paper_lenets", TRAIN, RUNS, before=PAPER_LENETS),
    Benchmark("before_retraining", PRUNE, f"{DATA} {RUNS}", before=PAPER_LENETS),
    Benchmark("sensitivity_kinds", PRUNE, DATA),
    Benchmark("random_architectures", CUT),
    Benchmark("coverage", CUT, packages=("torchvision", "timm", "torch-pruning")),
    Benchmark(
        "families",
        CUT,
        packages=(
            "torchvision",
            "timm",
            "torch-pruning",
            "ultralytics",
            "segmentation_models_pytorch",
            "monai",
            "transformers",
            "pytorchcv",
        ),
    ),
    Benchmark(
        "detectors",
        (*PRUNE, "secateur.storage", "secateur.certificates"),
        packages=("torchvision", "transformers", "onnx", "onnxruntime"),
    ),
    Benchmark(
        "tasks",
        (*PRUNE, "secateur.training"),
        f"{DATA} {RUNS}/tasks",
        packages=("timm", "torch-pruning", "safetensors"),
    ),
    Benchmark("few_samples", PRUNE, DATA, packages=("torchvision",)),
    Benchmark("quality", PRUNE, DATA, packages=("torchvision", "torch-pruning")),
    Benchmark("reproduction", (*PRUNE, "secateur.experiments", "secateur.training"), RUNS),
    Benchmark(
        "recovery", (*PRUNE, "secateur.training"), f"{DATA} {RUNS}/recovery", packages=("torchvision", "torch-pruning")
    ),
)
BY_NAME = {benchmark.name: benchmark for benchmark in BENCHMARKS}
