"""Cut whole filters out of trained PyTorch networks, and know how far the result can be trusted.

>>> import secateur as sc
>>> res = sc.prune(model, images, budget={"params": "40%"})
>>> print(res.summary())
>>> sc.save("small.safetensors", res)
"""

from secateur import schedule
from secateur.bench import Bench, bench
from secateur.certificate import Certificate
from secateur.certify import certify
from secateur.checkpoint import load, save
from secateur.compare import Comparison, compare
from secateur.cost import Cost, Latency, cost, latency
from secateur.errors import SecateurError
from secateur.evaluate import Evaluation, evaluate
from secateur.export import Export, export
from secateur.graph import ChannelGraph, Group
from secateur.plan import Plan, random_plan
from secateur.prune import Pruned, plan, prune
from secateur.repair import repair
from secateur.sensitivity import sensitivity
from secateur.surgery import cut, cut_optimizer, mask, verify
from secateur.sweep import sweep
from secateur.ties import Reason, Slot
from secateur.trace import trace
from secateur.train import Training, train

__version__ = "0.1.0.dev0"

__all__ = [
    "Bench",
    "Certificate",
    "ChannelGraph",
    "Comparison",
    "Cost",
    "Evaluation",
    "Export",
    "Group",
    "Latency",
    "Plan",
    "Pruned",
    "Reason",
    "SecateurError",
    "Slot",
    "Training",
    "bench",
    "certify",
    "compare",
    "cost",
    "cut",
    "cut_optimizer",
    "evaluate",
    "export",
    "latency",
    "load",
    "mask",
    "plan",
    "prune",
    "random_plan",
    "repair",
    "save",
    "schedule",
    "sensitivity",
    "sweep",
    "trace",
    "train",
    "verify",
]
