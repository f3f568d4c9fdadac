"""Write Keras' ResNet-50 weights as torchvision names them, for the recipe resnet50-imagenet-prune-only.

python benchmarks/resnet50_network.py --data DIR     # reads and writes DIR/weights
"""

from __future__ import annotations

from safetensors.torch import save_file

from checkpoints import trained
from environment import add_data_option, options, prepare

FILE = "resnet50-keras-as-torchvision.safetensors"


def main() -> None:
    """Convert the file."""
    parser = options(__doc__)
    add_data_option(parser, "weights")
    args = parser.parse_args()
    prepare()
    state = {
        name: tensor.contiguous() for name, tensor in trained("torchvision:resnet50", args.data).state_dict().items()
    }
    save_file(state, args.data / "weights" / FILE)
    print(f"written: {args.data / 'weights' / FILE}")


if __name__ == "__main__":
    main()
