"""Make torchvision importable beside a torch that it was not compiled for; tests and benchmarks share this."""

from __future__ import annotations

import sys

import torch

_library: list[torch.library.Library] = []  # a declaration lasts as long as its library object


def declare_missing_ops() -> None:
    """Import torchvision; if its compiled operators are absent, declare the two that the import asks for.

    >>> declare_missing_ops()
    >>> import torchvision

    No classification network uses them, so a declaration without code is enough.
    """
    try:
        import torchvision
    except ModuleNotFoundError:
        return
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _library.append(library)
        import torchvision  # noqa: F401
