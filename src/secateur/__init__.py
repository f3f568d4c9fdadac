"""Cut whole filters out of trained PyTorch networks, and know how far the result can be trusted.

>>> import secateur as sc
>>> res = sc.prune(model, images, budget={"params": "40%"})
>>> print(res.summary())
>>> sc.save("small.safetensors", res)
"""

from secateur import schedule
from secateur.checkpoint import load, save
from secateur.cost import Cost, Latency, cost, latency
from secateur.errors import SecateurError
from secateur.evaluate import Evaluation, evaluate
from secateur.graph import ChannelGraph, Group
from secateur.plan import Plan, random_plan
from secateur.prune import Pruned, plan, prune
from secateur.sensitivity import sensitivity
from secateur.surgery import cut, cut_optimizer, mask, verify
from secateur.sweep import sweep
from secateur.ties import Reason, Slot
from secateur.trace import trace
from secateur.train import Training, train

__version__ = "0.1.0.dev0"

__all__ = [
    "ChannelGraph",
    "Cost",
    "Evaluation",
    "Group",
    "Latency",
    "Plan",
    "Pruned",
    "Reason",
    "SecateurError",
    "Slot",
    "Training",
    "cost",
    "cut",
    "cut_optimizer",
    "evaluate",
    "latency",
    "load",
    "mask",
    "plan",
    "prune",
    "random_plan",
    "save",
    "schedule",
    "sensitivity",
    "sweep",
    "trace",
    "train",
    "verify",
]
