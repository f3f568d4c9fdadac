"""ResNet56 with half of its MACs as an ONNX file: accuracy in onnxruntime and in torch, and the time saved.

    python benchmarks/onnx_resnet56.py --data DIR     # writes results/onnx_resnet56.json; about three minutes

DIR has cifar-10-batches-py and weights. Pruned with 1,024 training images; the 10,000 test images run in batches of 250
in both runtimes. Times are for one image on one thread, original and cut network interleaved.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from environment import add_data_option, options, prepare, write_record
from quality import WORK, cifar

RUNS = 200


def session(path: Path) -> Callable[[Tensor], Tensor]:
    """Return a function that runs the network in a file with onnxruntime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    network = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = network.get_inputs()[0].name
    return lambda x: torch.from_numpy(network.run(None, {name: x.numpy()})[0])


@torch.no_grad()
def answers(run: Callable[[Tensor], Tensor], test: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, float]:
    """Return the class of every image, and the percentage that is correct."""
    found = torch.cat([run(x).argmax(1) for x, _ in test])
    return found, round(100 * float((found == torch.cat([y for _, y in test])).float().mean()), 2)


def measure(root: Path, folder: Path) -> dict[str, Any]:
    """Prune, export both networks, compare."""
    import secateur as sc
    from secateur.costs.timing import interleaved

    images = cifar(WORK[0], root, repeat=0)
    model = images.model.eval()
    res = sc.prune(model, list(images.x.split(64)), {"macs": "50%"}, samples=None)
    small, example = res.model.eval(), images.x[:1]
    torch.set_num_threads(1)
    written = [sc.export(net, folder / name, example) for net, name in ((model, "original.onnx"), (small, "cut.onnx"))]
    original, cut = (session(one.path) for one in written)
    (in_torch, right), (in_onnx, as_right) = answers(small, images.test), answers(cut, images.test)
    times = {
        "torch": sc.bench(model, small, example, runs=RUNS, threads=1),
        "onnxruntime": interleaved(lambda: original(example), lambda: cut(example), runs=RUNS, threads=1),
    }
    return {
        "macs_left": res.after.macs / res.before.macs,
        "accuracy_torch": right,
        "accuracy_onnxruntime": as_right,
        "answers_that_differ": int((in_torch != in_onnx).sum()),
        "largest_difference": written[1].difference,
        "bytes": {"original": written[0].bytes_after, "cut": written[1].bytes_after},
        "times": {
            name: {
                "original_ms": round(found.first.median_ms, 3),
                "cut_ms": round(found.second.median_ms, 3),
                "speedup": round(found.speedup, 3),
                "interval": [round(found.low, 3), round(found.high, 3)],
            }
            for name, found in times.items()
        },
    }


def main() -> None:
    """Measure and write the record."""
    parser = options(__doc__)
    add_data_option(parser, "cifar-10-batches-py and weights")
    args = parser.parse_args()
    prepare(2)
    with tempfile.TemporaryDirectory() as folder:
        record = {
            "what": "ResNet56 pruned to half of its MACs, in torch and as ONNX in onnxruntime; one image, one thread",
            **measure(args.data, Path(folder)),
        }
    print(json.dumps(record, indent=1))
    write_record("onnx_resnet56", record)


if __name__ == "__main__":
    main()
