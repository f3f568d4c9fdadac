"""Detectors in parts: prune, save, load, certify and export each with `scope=`, called with its own inputs.

    pip install 'secateur[zoo,transformers,onnx]'
    python benchmarks/detectors.py                          # all of them; stop and start again at will
    python benchmarks/detectors.py --only ssdlite

torchvision's detectors and a small DETR of transformers, with random weights and noise as images: every step has to
work and the cut has to be exact; accuracy is not measured. A row has the outcome, and the stage of a failure. Where
torchvision comes without compiled operations, its non-maximum suppression is replaced by one written in torch.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from environment import Rows, add_keep_option, options, prepare, print_rows, write_record

SIDE, SAMPLES, HELDOUT = 96, 8, 8
NETWORKS = (
    "ssdlite320_mobilenet_v3_large",
    "fasterrcnn_mobilenet_v3_large_fpn",
    "detr",
    "retinanet_resnet50_fpn",
    "ssd300_vgg16",
    "fasterrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn",
)
SCOPES = {"detr": ["model.backbone", "model.encoder"]}


def build(name: str) -> nn.Module:
    """Return a detector with random weights, in evaluation mode."""
    prepare()
    torch.manual_seed(0)
    if name == "detr":
        return _detr().eval()
    from torchvision.models import detection
    from torchvision.ops import boxes

    if not hasattr(torch.ops.torchvision, "roi_align"):
        boxes.nms = nms
    size = {} if name.startswith("ssd") else {"min_size": SIDE, "max_size": SIDE}
    make: Callable[..., nn.Module] = getattr(detection, name)
    return make(weights=None, weights_backbone=None, num_classes=5, **size).eval()


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of boxes that overlap no box of a higher score by more than the threshold."""
    from torchvision.ops import box_iou

    left, kept = scores.argsort(descending=True), []
    while len(left):
        kept.append(left[0])
        left = left[1:][box_iou(boxes[left[:1]], boxes[left[1:]])[0] <= iou_threshold]
    return torch.stack(kept) if kept else left


def _detr() -> nn.Module:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    small = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_model": 64, "num_queries": 10}
    own = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": backbone}
    return DetrForObjectDetection(DetrConfig(**small, **heads, **own, num_labels=5))


def batches(name: str, images: int, seed: int) -> list[Any]:
    """Return batches as the model takes them: lists of images with targets, or keyword arguments."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(images, 3, SIDE, SIDE, generator=generator)
    if name == "detr":
        mask = torch.ones(4, SIDE, SIDE, dtype=torch.long)
        return [{"pixel_values": part, "pixel_mask": mask[: len(part)]} for part in x.split(4)]
    return [(list(part), [None] * len(part)) for part in x.split(4)]


def run(model: nn.Module, batch: Any) -> list[Tensor]:
    """Return the tensors of the model's output."""
    with torch.no_grad():
        found = model(**batch) if isinstance(batch, dict) else model(batch[0])
    return [leaf for leaf in tree_leaves(dict(found) if isinstance(batch, dict) else found) if isinstance(leaf, Tensor)]


def measure(name: str) -> dict[str, Any]:
    """Walk the whole way with one detector, and return its row."""
    row: dict[str, Any] = {"network": name, "scope": SCOPES.get(name, ["backbone"]), "stage": "prune"}
    started = time.perf_counter()
    try:
        _walk(name, row)
    except Exception as error:
        row |= {"outcome": "failed", "error": f"{type(error).__name__}: {error}"[:400]}
    else:
        del row["stage"]
        row["outcome"] = "ok" if row["loaded_equal"] and row["verified"] < 1e-4 else "wrong"
    return row | {"seconds": round(time.perf_counter() - started, 1)}


def _walk(name: str, row: dict[str, Any]) -> None:
    import secateur as sc

    model, data = build(name), batches(name, SAMPLES, seed=1)
    res = sc.prune(model, data, {"macs": "60%"}, scope=row["scope"], samples=SAMPLES)
    row |= {
        "macs_left": round(res.after.macs / res.before.macs, 4),
        "params_left": round(res.after.params / res.before.params, 4),
        "verified": res.verification,
        "stage": "save",
    }
    with tempfile.TemporaryDirectory() as folder:
        sc.save(Path(folder) / "small.safetensors", res)
        row["stage"] = "load"
        loaded = sc.load(Path(folder) / "small.safetensors", build(name)).eval()
        pairs = zip(run(loaded, data[0]), run(res.model.eval(), data[0]), strict=True)
        row |= {"loaded_equal": all(torch.equal(one, other) for one, other in pairs), "stage": "certify"}
        row |= _certified(sc, name, model, loaded, res.fingerprints) | {"stage": "export"}
        example = data[0] if isinstance(data[0], dict) else (data[0][0],)
        for part in row["scope"]:
            made = sc.export(loaded, Path(folder) / "part.onnx", example, scope=part, runs=20)
            row["export_difference"] = max(made.difference, row.get("export_difference", 0.0))


def _certified(sc: Any, name: str, model: nn.Module, small: nn.Module, used: Any) -> dict[str, Any]:
    """Return bounds of a certificate; from so few images they show that it works, and little else."""
    fresh = batches(name, HELDOUT, seed=2)
    if name == "detr":
        cert = sc.certify(
            Scores(model), Scores(small), fresh, used=used, task="regression", eps=(1.0,), example=fresh[0]
        )
    else:
        cert = sc.certify(model, small, fresh, used=used, task="detection", threshold=0.0)
    return {"heldout_samples": cert.samples, "statements": len(cert.statements)}


class Scores(nn.Module):
    """The class scores of a DETR, as one tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor, pixel_mask: Tensor) -> Tensor:
        return self.model(pixel_values=pixel_values, pixel_mask=pixel_mask).logits


def main() -> None:
    """Run the detectors that are missing, and write the record."""
    parser = options(__doc__)
    parser.add_argument("--only", default="", help="only detectors whose names contain this")
    add_keep_option(parser)
    args = parser.parse_args()
    rows = Rows("detectors", {"side": SIDE, "samples": SAMPLES, "heldout": HELDOUT})
    done = {row["network"] for row in rows.read(args.keep)}
    for name in NETWORKS:
        if args.only in name and name not in done:
            print(rows.add(measure(name)), flush=True)
            write(rows)
    write(rows)


def write(rows: Rows) -> None:
    """Write the record: the last row of every detector."""
    last = {row["network"]: row for row in rows.read()}
    found = [last[name] for name in NETWORKS if name in last]
    what = "detectors pruned in parts: exactness of the cut, saving, loading, certificate and export"
    write_record("detectors", {"what": what, "rows": found}, commits={row["commit"] for row in found})
    print_rows({name: name for name in ("network", "outcome", "seconds")}, found)


if __name__ == "__main__":
    main()
