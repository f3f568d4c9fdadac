"""The command line as its tests call it, 80 columns wide, and networks in a file of the user's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from typer.testing import CliRunner, Result

from secateur.cli import app
from secateur.embedded import FOLDER

DIGITS = ("--data", "embedded:digits")
TRAINED = ("zoo:lenet5", "--weights", FOLDER / "lenet5.safetensors")

FILE = '''
from pathlib import Path
import torch
from torch import nn

class Net(nn.Module):
    """One group to cut, the input and the classes to keep."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.last = nn.Linear(3, 6), nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x, y):
        return self.last(torch.relu(self.left(x) + self.right(y)))

class Choosing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x

class Long(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3 if i == 0 else 4, 4, 1) for i in range(60)]
        self.a_rather_long_name_for_the_trunk_of_a_network_with_many_layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.a_rather_long_name_for_the_trunk_of_a_network_with_many_layers(x)

def make():
    Path(__file__).with_name("ready").touch()
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

def deep():
    return nn.Sequential(*[nn.Linear(6, 6) for _ in range(60)])

def batches():
    return [torch.randn(32, 6)]

def pairs():
    return [(torch.randn(9, 3), torch.randn(9, 5))] * 2

def by_keyword():
    return [{"x": torch.randn(9, 3), "y": torch.randn(9, 5)}] * 2
'''


def run(*args: object) -> Result:
    """Run a command."""
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def write_networks(folder: Path) -> Path:
    """Write the file with networks and data."""
    path = folder / "net.py"
    path.write_text(FILE)
    return path


def width(result: Result, *without: object) -> int:
    """Return the width of the widest line, apart from those with a path in them."""
    lines = [line for line in result.stdout.splitlines() if not any(str(path) in line for path in without)]
    return max(map(len, lines))


def shell(*args: object) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-m", "secateur", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "80", "TERM": "xterm-256color"},
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell ignores it for background jobs
    )
