"""Evaluate the public CIFAR-10 checkpoints on the 10,000 test images, with the package's own loader and data.

    python benchmarks/checkpoints.py --data DIR      # writes results/checkpoints.json

DIR has cifar-10-batches-py and weights. The other benchmarks load their trained networks from here.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from environment import add_data_option, options, prepare, print_rows, write_record

Scale = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of the channels
IMAGENET: Scale = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
PLAIN: Scale = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
KERAS: Scale = ((123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255, 1 / 255, 1 / 255))
FILES = {
    "zoo:resnet20": "resnet20-12fca82f.th",
    "zoo:resnet56": "resnet56-4bfd9763.th",
    "zoo:resnet56-b": "resnet56-b-cifar10-9320.safetensors",
    "zoo:vgg16-bn": "vgg16-bn-cifar10-9225.safetensors",
    "torchvision:mobilenet_v2": "mobilenet_v2-b0353104.pth",
    "torchvision:resnet50": "resnet50-keras-v1.safetensors",
}
PUBLISHED = {"zoo:resnet20": 91.7, "zoo:resnet56": 93.4, "zoo:resnet56-b": 93.2, "zoo:vgg16-bn": 92.25}  # accuracy


def trained(name: str, root: Path) -> nn.Module:
    """Return a network with the weights of its checkpoint, in evaluation mode."""
    from secateur.zoo.names import build

    path = root / "weights" / FILES[name]
    return keras_resnet50(path) if name == "torchvision:resnet50" else build(name, path).eval()


def keras_resnet50(path: Path) -> nn.Module:
    """Return torchvision's ResNet-50 with the weights of Keras' first version, in evaluation mode.

    Keras has the stride of a stage in its first 1x1 convolution, a bias in every convolution, which here becomes part
    of the mean of the norm behind it, and channels in the order BGR, so that those of the first kernel are reversed.
    """
    from secateur.zoo.names import build

    model = build("torchvision:resnet50")
    tensors = load_file(path)
    state: dict[str, Tensor] = {}
    for ours, conv, norm in _keras_names():
        state[f"{ours[0]}.weight"] = tensors[f"{conv}/kernel"].permute(3, 2, 0, 1)
        state[f"{ours[1]}.weight"], state[f"{ours[1]}.bias"] = (tensors[f"{norm}/{name}"] for name in ("gamma", "beta"))
        state[f"{ours[1]}.running_mean"] = tensors[f"{norm}/moving_mean"] - tensors[f"{conv}/bias"]
        state[f"{ours[1]}.running_var"] = tensors[f"{norm}/moving_variance"]
        state[f"{ours[1]}.num_batches_tracked"] = torch.tensor(0)
    state["conv1.weight"] = state["conv1.weight"].flip(1)
    state["fc.weight"], state["fc.bias"] = tensors["fc1000/kernel"].T, tensors["fc1000/bias"]
    model.load_state_dict({name: tensor.contiguous() for name, tensor in state.items()})
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return model.eval()


def _keras_names() -> list[tuple[tuple[str, str], str, str]]:
    """Return for every convolution the names of it and its norm in torchvision, and of both in Keras."""
    found = [(("conv1", "bn1"), "conv1", "bn_conv1")]
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            ours, theirs = f"layer{stage}.{block}", f"{stage + 1}{'abcdef'[block]}_branch"
            pairs = [((f"{ours}.conv{i}", f"{ours}.bn{i}"), f"{theirs}2{'abc'[i - 1]}") for i in (1, 2, 3)]
            if block == 0:
                pairs.append(((f"{ours}.downsample.0", f"{ours}.downsample.1"), f"{theirs}1"))
            found += [(names, f"res{name}", f"bn{name}") for names, name in pairs]
    return found


def scale(name: str) -> Scale:
    """Return the scale of the images that a checkpoint was trained with."""
    if name == "torchvision:resnet50":
        return KERAS
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
