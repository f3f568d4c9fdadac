"""Shrink trained PyTorch networks by removing whole filters, and state how far the result can be trusted.

>>> import secateur as sc
>>> res = sc.prune(model, images, budget={"params": "40%"})
>>> print(res.summary())
>>> sc.save("small.safetensors", res)
"""

from typing import Any

from secateur._version import __version__
from secateur.certificates.certificate import Certificate, Statement
from secateur.certificates.certify import certify
from secateur.channels.graph import ChannelGraph, Group
from secateur.channels.ties import Reason
from secateur.costs.cost import Cost, cost
from secateur.costs.timing import Bench, Latency, bench, latency
from secateur.errors import SecateurError, UsageError
from secateur.experiments import schedule
from secateur.experiments.sweep import sweep
from secateur.methods.base import GroupRow
from secateur.methods.pfp.sensitivity import sensitivity
from secateur.network.modules import Slot
from secateur.profiling.cache import latency_table
from secateur.profiling.table import LatencyTable
from secateur.pruning.compare import compare
from secateur.pruning.comparison import Comparison
from secateur.pruning.prune import plan, prune
from secateur.pruning.result import Pruned
from secateur.pruning.settings import PruneSettings
from secateur.refit.repair import LayerRepair, Repair, repair
from secateur.report import figures
from secateur.report.view import Sweep, read_sweep
from secateur.storage.checkpoint import load, save
from secateur.storage.export import Export, export
from secateur.storage.onnx_network import load_onnx
from secateur.surgery.cut import cut, mask
from secateur.surgery.optimizer import cut_optimizer
from secateur.surgery.plan import Plan, random_plan
from secateur.surgery.verify import verify
from secateur.theory.statement import LayerTheory, Theory
from secateur.theory.theory import theory
from secateur.tracing.trace import trace
from secateur.training.evaluation import Evaluation, evaluate
from secateur.training.loop import train
from secateur.training.recovery import Recovered, recover
from secateur.training.settings import Training

__all__ = [
    "Bench",
    "Certificate",
    "ChannelGraph",
    "Comparison",
    "Cost",
    "Evaluation",
    "Export",
    "Group",
    "GroupRow",
    "Latency",
    "LatencyTable",
    "LayerRepair",
    "LayerTheory",
    "Plan",
    "PruneSettings",
    "Pruned",
    "Reason",
    "Recovered",
    "Repair",
    "SecateurError",
    "Slot",
    "Statement",
    "Sweep",
    "Theory",
    "Training",
    "UsageError",
    "__version__",
    "bench",
    "certify",
    "compare",
    "cost",
    "cut",
    "cut_optimizer",
    "evaluate",
    "export",
    "figures",
    "latency",
    "latency_table",
    "load",
    "load_onnx",
    "mask",
    "plan",
    "prune",
    "random_plan",
    "read_sweep",
    "recover",
    "repair",
    "save",
    "schedule",
    "sensitivity",
    "sweep",
    "theory",
    "trace",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "bounds":  # moved, and split in two
        from secateur.certificates import bounds
        from secateur.deprecation import old_bounds
        from secateur.methods.pfp import bounds as sampling

        return old_bounds(sampling, bounds)
    raise AttributeError(f"module 'secateur' has no attribute {name!r}")
