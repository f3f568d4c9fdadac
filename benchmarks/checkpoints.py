"""Evaluate the public CIFAR-10 checkpoints on the 10,000 test images, with the package's own loader and data.

    python benchmarks/checkpoints.py --data DIR      # writes results/checkpoints.json

DIR has cifar-10-batches-py and weights. The other benchmarks load their trained networks from here.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from environment import add_data_option, options, prepare, print_rows, write_record

Scale = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of the channels
IMAGENET: Scale = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
PLAIN: Scale = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
FILES = {
    "zoo:resnet20": "resnet20-12fca82f.th",
    "zoo:resnet56": "resnet56-4bfd9763.th",
    "zoo:resnet56-b": "resnet56-b-cifar10-9320.safetensors",
    "zoo:vgg16-bn": "vgg16-bn-cifar10-9225.safetensors",
    "torchvision:mobilenet_v2": "mobilenet_v2-b0353104.pth",
}
PUBLISHED = {"zoo:resnet20": 91.7, "zoo:resnet56": 93.4, "zoo:resnet56-b": 93.2, "zoo:vgg16-bn": 92.25}  # accuracy


def trained(name: str, root: Path) -> nn.Module:
    """Return a network with the weights of its checkpoint, in evaluation mode."""
    from secateur.zoo.names import build

    return build(name, root / "weights" / FILES[name]).eval()


def scale(name: str) -> Scale:
    """Return the scale of the images that a checkpoint was trained with."""
    return PLAIN if name in ("zoo:resnet56-b", "zoo:vgg16-bn") else IMAGENET


def main() -> None:
    """Evaluate each checkpoint and print its accuracy beside the published one."""
    parser = options(__doc__, threads=2)
    add_data_option(parser, "cifar-10-batches-py and weights")
    args = parser.parse_args()
    prepare(args.threads)
    from secateur.data import Batches, dataset
    from secateur.training.evaluation import evaluate

    test = dataset("cifar10", "test", args.data, download=False)
    rows = []
    for name, published in PUBLISHED.items():
        batches = Batches(test.scaled(*scale(name)), 250, shuffle=False, augment=False, seed=0)
        found = evaluate(trained(name, args.data), batches)
        accuracy = round(100 * float(found.top1 or 0), 2)
        rows.append(
            {
                "network": name,
                "file": FILES[name],
                "samples": found.samples,
                "top1": accuracy,
                "published": published,
            }
        )
    columns = {"network": "network", "measured": "top1", "published": "published"}
    print_rows(columns, rows, title="CIFAR-10 test images, percent correct")
    write_record("checkpoints", {"what": "public checkpoints on the CIFAR-10 test set", "rows": rows})


if __name__ == "__main__":
    main()
