"""ONNX files as networks: run by onnxruntime, called as a module, so that they can be certified like one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.certificates import fingerprints
from secateur.checks import known_keywords
from secateur.errors import SecateurError, UsageError, explained
from secateur.optional import require
from secateur.storage.files import as_path

INSTALL = "'secateur[onnx]'"
USED = "secateur.samples"  # metadata of a file: fingerprints of the samples that made its network


class OnnxNetwork(nn.Module):
    """An ONNX file that is called with tensors and returns tensors, in the order of the file's inputs and outputs.

    A file for a fixed batch size runs batch by batch; the last one is filled up with copies.
    """

    def __init__(self, path: Path, session: Any) -> None:
        super().__init__()
        self.path, self.session = path, session
        self.names = [one.name for one in session.get_inputs()]
        sizes = {one.shape[0] for one in session.get_inputs() if one.shape and isinstance(one.shape[0], int)}
        self.fixed = max(sizes) if sizes else None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tensors = [leaf.detach().cpu() for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if len(tensors) != len(self.names):
            raise SecateurError(
                f"{self.path} takes {len(self.names)} inputs, and there are {len(tensors)}",
                remedy=f"pass one tensor for each of {', '.join(self.names)}",
            )
        samples = len(tensors[0])
        if self.fixed is None or samples == self.fixed:
            found = self._run(tensors)
        else:
            order = torch.arange(-(-samples // self.fixed) * self.fixed).clamp_max(samples - 1)
            parts = [self._run([tensor[part] for tensor in tensors]) for part in order.split(self.fixed)]
            found = [torch.cat(pieces)[:samples] for pieces in zip(*parts, strict=True)]
        return found[0] if len(found) == 1 else tuple(found)

    def _run(self, tensors: list[Tensor]) -> list[Tensor]:
        fed = {name: tensor.numpy() for name, tensor in zip(self.names, tensors, strict=True)}
        return [torch.from_numpy(found) for found in self.session.run(None, fed)]


@known_keywords
def load_onnx(path: str | Path) -> OnnxNetwork:
    """Return an ONNX file as a network, to run, evaluate or certify it.

    >>> cert = sc.certify(model, sc.load_onnx("small.onnx"), heldout)

    It runs in onnxruntime on the CPU, with torch's number of threads, and remembers the samples that made it if
    `export` wrote it.
    """
    path = as_path(path)
    if not path.is_file():
        raise UsageError(f"there is no file {path}", remedy="secateur export writes one")
    with explained(f"{path} cannot be read as ONNX", remedy="write it again with secateur export"):
        session = onnx_session(str(path))
        used = session.get_modelmeta().custom_metadata_map.get(USED)
    network = OnnxNetwork(path, session)
    if isinstance(used, str):
        fingerprints.unpack(used)  # or the error says that they cannot be read
        fingerprints.remember(network, used)
    return network


def onnx_session(source: bytes | str) -> Any:
    """Return a session of onnxruntime for the bytes or the path of an ONNX file, with torch's number of threads."""
    runtime = require("onnxruntime", install=INSTALL)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors, which are raised as exceptions as well
    return runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
