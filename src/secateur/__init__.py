"""Cut whole filters out of trained PyTorch networks, and prove that the cut is exact.

>>> import secateur as sc
>>> graph = sc.trace(model, example)
>>> plan = sc.random_plan(graph, kept=0.5)
>>> small = sc.cut(model, plan)
>>> sc.verify(model, plan, data)
"""

from secateur.checkpoint import load, save
from secateur.cost import Cost, Latency, cost, latency
from secateur.errors import SecateurError
from secateur.graph import ChannelGraph, Group
from secateur.plan import Plan, random_plan
from secateur.prune import Pruned, plan, prune
from secateur.sensitivity import sensitivity
from secateur.surgery import cut, cut_optimizer, mask, verify
from secateur.ties import Reason, Slot
from secateur.trace import trace

__version__ = "0.1.0.dev0"

__all__ = [
    "ChannelGraph",
    "Cost",
    "Group",
    "Latency",
    "Plan",
    "Pruned",
    "Reason",
    "SecateurError",
    "Slot",
    "cost",
    "cut",
    "cut_optimizer",
    "latency",
    "load",
    "mask",
    "plan",
    "prune",
    "random_plan",
    "save",
    "sensitivity",
    "trace",
    "verify",
]
