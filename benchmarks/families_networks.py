"""The networks of the families benchmark: detectors, segmenters, medical networks and others.

Each is made from a package of its own, in a small version and with random weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coverage_networks import randomise
from environment import prepare

YOLO = """
yolov3-tiny yolov5n yolov5n-p6 yolov6n yolov8n yolov8n-seg yolov8n-pose yolov8n-obb yolov8n-cls yolov8n-p2 yolov8n-p6
yolov8n-ghost yolov9t yolov9s yolov10n yolo11n yolo11n-seg yolo11n-pose yolo11n-obb yolo11n-cls yolo12n yolo26n
""".split()
SMP = {
    "resnet18": "Unet UnetPlusPlus MAnet Linknet FPN PSPNet DeepLabV3 DeepLabV3Plus PAN UPerNet Segformer".split(),
    "mobilenet_v2": "Unet FPN DeepLabV3Plus PAN".split(),
    "efficientnet-b0": "Unet FPN DeepLabV3Plus".split(),
    "timm-regnetx_002": "Unet FPN".split(),
    "densenet121": "Unet".split(),
    "mit_b0": "Unet Segformer".split(),
}
MONAI: dict[str, dict[str, Any]] = {
    "BasicUNet": {"spatial_dims": 2, "in_channels": 3, "out_channels": 4, "features": (16, 16, 32, 64, 96, 16)},
    "BasicUNetPlusPlus": {"spatial_dims": 2, "in_channels": 3, "out_channels": 4, "features": (16, 16, 32, 64, 96, 16)},
    "UNet": {
        "spatial_dims": 2,
        "in_channels": 3,
        "out_channels": 4,
        "channels": (16, 32, 64, 96),
        "strides": (2, 2, 2),
        "num_res_units": 2,
    },
    "AttentionUnet": {
        "spatial_dims": 2,
        "in_channels": 3,
        "out_channels": 4,
        "channels": (16, 32, 64),
        "strides": (2, 2),
    },
    "DynUNet": {
        "spatial_dims": 2,
        "in_channels": 3,
        "out_channels": 4,
        "kernel_size": (3, 3, 3),
        "strides": (1, 2, 2),
        "upsample_kernel_size": (2, 2),
        "filters": (16, 32, 64),
    },
    "SegResNet": {"spatial_dims": 2, "in_channels": 3, "out_channels": 4, "init_filters": 16},
    "SegResNetDS": {"spatial_dims": 2, "in_channels": 3, "out_channels": 4, "init_filters": 16},
    "HighResNet": {"spatial_dims": 2, "in_channels": 3, "out_channels": 4},
    "FlexibleUNet": {"spatial_dims": 2, "in_channels": 3, "out_channels": 4, "backbone": "efficientnet-b0"},
    "UNETR": {
        "spatial_dims": 2,
        "in_channels": 3,
        "out_channels": 4,
        "img_size": 96,
        "hidden_size": 96,
        "mlp_dim": 192,
        "num_heads": 6,
    },
    "SwinUNETR": {"spatial_dims": 2, "in_channels": 3, "out_channels": 4, "feature_size": 12},
    "DenseNet121": {"spatial_dims": 2, "in_channels": 3, "out_channels": 10},
    "SEResNet50": {"spatial_dims": 2, "in_channels": 3, "num_classes": 10},
    "Discriminator": {"in_shape": (3, 96, 96), "channels": (16, 32, 64), "strides": (2, 2, 2)},
    "AutoEncoder": {
        "spatial_dims": 2,
        "in_channels": 3,
        "out_channels": 3,
        "channels": (16, 32, 64),
        "strides": (2, 2, 2),
    },
    "ViT": {
        "spatial_dims": 2,
        "in_channels": 3,
        "img_size": 96,
        "patch_size": 16,
        "hidden_size": 96,
        "mlp_dim": 192,
        "num_layers": 2,
        "num_heads": 6,
        "classification": True,
    },
}
SMALL_VIT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 96,
    "patch_size": 16,
}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "ResNet": {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1]},
    "RegNet": {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 2, 1], "groups_width": 16},
    "MobileNetV1": {"depth_multiplier": 0.5},
    "MobileNetV2": {"depth_multiplier": 0.5},
    "ConvNext": {"hidden_sizes": [16, 32, 64, 96], "depths": [1, 1, 2, 1]},
    "ConvNextV2": {"hidden_sizes": [16, 32, 64, 96], "depths": [1, 1, 2, 1]},
    "EfficientNet": {"width_coefficient": 0.5, "depth_coefficient": 0.5, "image_size": 96, "hidden_dim": 640},
    "Bit": {"hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 1, 1], "embedding_size": 32, "num_groups": 8},
    "MobileViT": {"hidden_sizes": [32, 48, 64], "neck_hidden_sizes": [8, 16, 32, 48, 64, 80, 160], "image_size": 96},
    "PoolFormer": {"hidden_sizes": [16, 32, 64, 96], "depths": [1, 1, 1, 1]},
    "Segformer": {"hidden_sizes": [16, 32, 64, 96], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 4]},
    "ViT": SMALL_VIT,
    "DeiT": SMALL_VIT,
    "Beit": SMALL_VIT,
    "Dinov2": {**SMALL_VIT, "mlp_ratio": 2},
    "Swin": {"embed_dim": 24, "depths": [1, 1], "num_heads": [2, 4], "image_size": 96, "window_size": 6},
    "FocalNet": {"embed_dim": 24, "depths": [1, 1], "hidden_sizes": [24, 48], "image_size": 96},
    "Pvt": {"hidden_sizes": [16, 32, 80, 96], "depths": [1, 1, 1, 1], "image_size": 96},
    "Van": {"hidden_sizes": [16, 32, 64, 96], "depths": [1, 1, 1, 1]},
    "Cvt": {"embed_dim": [16, 48, 96], "depth": [1, 2, 3]},
}
PYTORCHCV = """
alexnet airnext50_32x4d_r2 bagnet9 bn_vgg11 bninception condensenet74_c4_g4 darknet_tiny darknet53 darts densenet121
diaresnet10 dicenet_wd5 dla34 dpn68 drnc26 efficientnet_edge_small_b efficientnet_b0 espnetv2_wd2 fbnet_cb
fdmobilenet_wd4 fishnet99 ghostnet hardnet39ds hrnet_w18_small_v1 ibn_resnet50 igcv3_wd4 inceptionresnetv1 inceptionv3
isqrtcovresnet18 lwopenpose2d_mobilenet_cmupan_coco menet108_8x1_g3 mixnet_s mnasnet_b1 mobilenet_wd4 mobilenetv2_wd4
mobilenetv3_small_wd2 msdnet22 nasnet_4a1056 octresnet10_ad2 peleenet pnasnet5large preresnet10 proxylessnas_cpu
pyramidnet101_a360 regnetx002 regnety002 resattnet56 resdropresnet20_cifar10 resnesta18 resnet10 resneta10 resnetd50b
resnext14_32x4d ror3_56_cifar10 selecsls42 senet16 seresnet10 seresnext50_32x4d sepreresnet10
shakeshakeresnet20_2x16d_cifar10 shufflenet_g1_wd4 shufflenetv2_wd2 shufflenetv2b_wd2 sknet50 spnasnet squeezenet_v1_1
sqnxt23_w1 squeezeresnet_v1_1 tresnet_m vgg11 vovnet27s wrn20_10_1bit_cifar10 xception zfnet
bisenet_resnet18_celebamaskhq danet_resnetd50b_cityscapes deeplabv3_resnetd50b_voc fastscnn_cityscapes
fcn8sd_resnetd50b_voc icnet_resnetd50b_cityscapes lednet_cityscapes pspnet_resnetd50b_voc sinet_cityscapes
cgnet_cityscapes dabnet_cityscapes fpenet_cityscapes esnet_cityscapes edanet_cityscapes enet_cityscapes
erfnet_cityscapes linknet_cityscapes segnet_cityscapes unet_cityscapes simplepose_resnet18_coco
alphapose_fastseresnet101b_coco ibppose_coco pfpcnet
""".split()
LIBRARIES = ("yolo", "smp", "monai", "transformers", "pytorchcv")


def names() -> list[str]:
    """Return the networks as `library:name`, the small families first."""
    smp = [f"{kind}/{encoder}" for encoder, kinds in SMP.items() for kind in kinds]
    lists: tuple[Any, ...] = (YOLO, smp, MONAI, TRANSFORMERS, PYTORCHCV)
    return [f"{library}:{name}" for library, found in zip(LIBRARIES, lists, strict=True) for name in found]


def build(full_name: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """Return a network with random weights, in evaluation mode, and an input that it accepts in both modes.

    >>> model, example = build("yolo:yolov8n")
    """
    prepare()
    torch.manual_seed(seed)
    library, name = full_name.split(":")
    model = globals()[f"_{library}"](name)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    example = torch.randn(2, *_shape(model))
    randomise(model, example)
    return model.eval(), example


def _shape(model: Any) -> tuple[int, int, int]:
    """Return channels and size of images that the network accepts: 96, 128, or those of its own data set."""
    own = getattr(model, "in_size", None) or (224, 224)
    shapes = ((3, 96, 96), (3, 128, 128), (3, *own), (1, *own))
    for shape in shapes:
        try:
            with torch.no_grad():
                model.eval()(torch.randn(2, *shape))
                model.train()(torch.randn(2, *shape))
        except Exception:
            if shape == shapes[-1]:
                raise
        else:
            return shape
    raise AssertionError("the last shape either runs or raises")


def _yolo(name: str) -> nn.Module:
    from ultralytics import YOLO as Model

    return Model(f"{name}.yaml").model


def _smp(name: str) -> nn.Module:
    import segmentation_models_pytorch

    kind, encoder = name.split("/")
    return getattr(segmentation_models_pytorch, kind)(encoder, encoder_weights=None, classes=5)


def _monai(name: str) -> nn.Module:
    from monai.networks import nets

    return getattr(nets, name)(**MONAI[name])


def _transformers(name: str) -> nn.Module:
    import transformers

    task = "ForSemanticSegmentation" if name == "Segformer" else "ForImageClassification"
    config = getattr(transformers, f"{name}Config")(**TRANSFORMERS[name])
    return getattr(transformers, f"{name}{task}")(config)


def _pytorchcv(name: str) -> nn.Module:
    from pytorchcv.model_provider import get_model

    model = get_model(name, pretrained=False)
    for own, index in model.named_buffers():
        if own.endswith(".index"):  # the inputs that a CondenseNet selects, all zero until it is trained
            index.copy_(torch.randperm(len(index)))
    return model
