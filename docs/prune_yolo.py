"""Prune a YOLO of ultralytics, train it on in its own trainer, validate it, and export it to ONNX.

    pip install 'secateur[yolo,onnx]'
    python docs/prune_yolo.py                                    # yolov8n on a small made-up data set, a few minutes
    python docs/prune_yolo.py --model yolov8n.pt --data coco.yaml --epochs 30 --size 640

Without --model and --data it shows the way, not a result: the weights are random, and the images are rectangles.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from ultralytics import YOLO
from ultralytics.data.build import build_dataloader, build_yolo_dataset
from ultralytics.data.utils import check_det_dataset
from ultralytics.models.yolo.detect import DetectionTrainer

import secateur as sc

FREE = ["1.feats", "feats"]  # the feature maps beside the predictions, in evaluation and in training mode


def rectangles(folder: Path, images: int = 32, side: int = 64) -> Path:
    """Write a data set of bright rectangles on noise, in the layout of ultralytics, and return its YAML file."""
    random = np.random.default_rng(0)
    for part in ("train", "val"):
        for kind in ("images", "labels"):
            (folder / kind / part).mkdir(parents=True, exist_ok=True)
        for number in range(images):
            pixels = random.integers(0, 80, (side, side, 3), dtype=np.uint8)
            width, height = random.integers(16, 32, 2)
            left, top = random.integers(0, side - width), random.integers(0, side - height)
            pixels[top : top + height, left : left + width] = random.integers(150, 255, 3)
            Image.fromarray(pixels).save(folder / "images" / part / f"{number}.png")
            box = (left + width / 2, top + height / 2, width, height)
            text = " ".join(f"{value / side:.4f}" for value in box)
            (folder / "labels" / part / f"{number}.txt").write_text(f"0 {text}\n")
    file = folder / "rectangles.yaml"
    file.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames:\n  0: rectangle\n")
    return file


def calibration(data: str, size: int, samples: int) -> list[torch.Tensor]:
    """Return training images from ultralytics' own data loader, without augmentation."""
    settings = DetectionTrainer(overrides={"data": data, "imgsz": size, "model": "yolov8n.yaml", "plots": False}).args
    content = check_det_dataset(data)
    dataset = build_yolo_dataset(settings, content["train"], batch=16, data=content, mode="val")
    loader = build_dataloader(dataset, batch=16, workers=0, shuffle=True)
    batches = [batch["img"].float() / 255 for batch, _ in zip(loader, range(-(-samples // 16)), strict=False)]
    return [batch for batch in batches if batch.shape[-2:] == batches[0].shape[-2:]]


def trainer_for(network: torch.nn.Module) -> type:
    """Return a trainer that trains this network; the usual one would build a new network from the YAML file."""

    class PrunedTrainer(DetectionTrainer):
        def get_model(self, cfg: Any = None, weights: Any = None, verbose: bool = True) -> torch.nn.Module:
            return network

    return PrunedTrainer


def main() -> None:
    """Walk the whole way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="yolov8n.yaml", help="weights (.pt) or a configuration (.yaml)")
    parser.add_argument("--data", help="data set of ultralytics; by default rectangles")
    parser.add_argument("--macs", default="60%", help="what may remain (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--size", type=int, default=64, help="side of the images (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=32, help="images for calibration (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("yolo-pruned"))
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    data = args.data or str(rectangles(args.out.resolve() / "rectangles"))

    torch.manual_seed(0)
    yolo = YOLO(args.model)
    model = yolo.model.float().eval()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    images = calibration(data, args.size, args.samples)
    res = sc.prune(model, images, {"macs": args.macs}, free_outputs=FREE, samples=args.samples)
    print(f"{res.before}; pruned {res.after}, verified: {res.verification < 1e-4}")
    sc.save(args.out / "pruned.safetensors", res)

    settings = {"data": data, "epochs": args.epochs, "imgsz": args.size, "device": "cpu", "workers": 0, "plots": False}
    yolo.train(trainer=trainer_for(res.model), project=str(args.out.resolve()), name="train", exist_ok=True, **settings)
    trained = yolo.trainer.best if yolo.trainer.best.exists() else yolo.trainer.last
    found = YOLO(trained).val(data=data, imgsz=args.size, device="cpu", workers=0, plots=False, verbose=False)
    print(f"mAP50 after training: {found.box.map50:.3f}")

    best = YOLO(trained).model.float().eval().fuse(verbose=False)
    print(sc.export(best, args.out / "pruned.onnx", images[0][:1], data=images[0][:4]))


if __name__ == "__main__":
    main()
