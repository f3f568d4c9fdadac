"""The networks of the coverage benchmark: names, construction, and random weights that leave no error hidden."""

from __future__ import annotations

import math
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from environment import prepare

# One or two of the smallest variants of every convolutional family in timm, under 60 million parameters.
TIMM_CNNS = """
bat_resnext26ts convformer_s18 convmixer_768_32 convnext_atto convnext_atto_ols convnext_tiny_hnf convnext_zepto_rms
convnextv2_atto cs3darknet_focus_s cs3darknet_s cs3edgenet_x cs3se_edgenet_x cs3sedarknet_l cspdarknet53 cspresnet50
cspresnet50w cspresnext50 darknet17 darknet53 darknetaa53 densenet121 densenetblur121d dla34 dla46x_c dla60_res2net
dla60_res2next dpn48b dpn68 dpn92 eca_nfnet_l0 eca_resnet33ts eca_resnext26ts eca_vovnet39b ecaresnet26t
ecaresnet50d_pruned ecaresnetlight ecaresnext26t_32x4d edgenext_small edgenext_xx_small efficientformer_l1
efficientformerv2_s0 efficientnet_b0 efficientnet_b0_g16_evos efficientnet_b0_g8_gn efficientnet_b0_gn
efficientnet_blur_b0 efficientnet_cc_b0_4e efficientnet_es efficientnet_lite0 efficientnet_x_b3 efficientnetv2_rw_t
efficientnetv2_s ese_vovnet19b_dw ese_vovnet19b_slim ese_vovnet39b ese_vovnet39b_evos fasternet_t0 fasternet_t1
fastvit_s12 fastvit_sa12 fastvit_t8 fbnetc_100 fbnetv3_b focalnet_tiny_srf gc_efficientnetv2_rw_t gcresnet33ts
gcresnext26ts gernet_m gernet_s ghostnet_050 ghostnet_100 ghostnetv2_100 ghostnetv3_050 hardcorenas_a hardcorenas_f
hgnet_tiny hgnetv2_b0 hrnet_w18_small hrnet_w18_ssld inception_next_atto inception_next_tiny inception_resnet_v2
inception_v3 inception_v4 lcnet_050 lcnetv2_small legacy_seresnet18 legacy_seresnext26_32x4d legacy_xception
mambaout_femto mixnet_s mixnet_xl mnasnet_050 mnasnet_small mobilenet_edgetpu_100 mobilenet_edgetpu_v2_xs
mobilenetv1_100 mobilenetv2_050 mobilenetv2_110d mobilenetv3_large_100 mobilenetv3_small_050
mobilenetv4_conv_aa_medium mobilenetv4_conv_blur_medium mobilenetv4_conv_small mobileone_s0 mobileone_s1
nf_ecaresnet26 nf_regnet_b0 nf_resnet26 nf_seresnet26 nfnet_l0 poolformer_s12 poolformerv2_s12 rdnet_tiny regnetv_040
regnetx_002 regnety_002 regnety_040_sgn regnetz_005 regnetz_b16 regnetz_b16_evos repghostnet_050 repvgg_a0 repvgg_b1g4
repvit_m0_9 repvit_m1 res2net50_14w_8s res2net50_26w_4s res2net50d res2next50 resnest14d resnest26d resnest50d_4s2x40d
resnet10t resnet18 resnet26d resnet33ts resnet50 resnet50_gn resnet51q resnetaa34d resnetblur18 resnetrs50 resnetv2_18
resnetv2_50d_evos resnetv2_50d_frn resnetv2_50d_gn resnetv2_50x1_bit resnext26ts resnext50_32x4d rexnet_100
rexnetr_100 sedarknet21 selecsls42b selecsls60 semnasnet_050 seresnet18 seresnet33ts seresnext26d_32x4d seresnext26ts
skresnet18 skresnet34 skresnext50_32x4d spnasnet_100 starnet_s050 starnet_s1 tf_efficientnet_b0 tf_efficientnet_lite0
tf_efficientnetv2_b0 tf_mixnet_s tf_mobilenetv3_small_100 tinynet_a tinynet_e tresnet_m vovnet39a xception41
xception41p
""".split()

TORCHVISION_TRANSFORMERS = ("maxvit*", "swin*", "vit*")
TIMM_TRANSFORMERS = """
botnet26t_256 caformer_s18 coatnet_nano_rw_224 efficientvit_b0 halonet26t lambda_resnet26t levit_conv_128s
mobilenetv4_hybrid_medium mobilevit_xxs mobilevitv2_050 nextvit_small swiftformer_xs visformer_tiny
vit_tiny_patch16_224
""".split()
TOO_LARGE = (
    "vit_h_14",
    "vit_l_16",
    "vit_l_32",
    "vit_b_16",
    "swin_b",
    "swin_v2_b",
    "swin_s",
    "swin_v2_s",
)  # a smaller variant is included

# Image sides, tried until the network runs in evaluation and training mode; None is the network's own default.
SIDES = (96, 128, 192, None)
SMALL_SIDE_FROM = 150_000_000  # parameters


def names() -> dict[str, list[str]]:
    """Return the networks by section, as `library:name`."""
    prepare()
    import torchvision.models

    pictures = torchvision.models.list_models(module=torchvision.models)
    attention = [name for name in pictures if any(fnmatch(name, pattern) for pattern in TORCHVISION_TRANSFORMERS)]
    return {
        "torchvision": [f"torchvision:{name}" for name in pictures if name not in attention],
        "timm": [f"timm:{name}" for name in sorted(TIMM_CNNS)],
        "transformers": [f"torchvision:{name}" for name in attention if name not in TOO_LARGE]
        + [f"timm:{name}" for name in sorted(TIMM_TRANSFORMERS)],
    }


def build(full_name: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """Return a network with random weights, in evaluation mode, and an input that it accepts.

    >>> model, example = build("torchvision:resnet18")
    """
    prepare()
    torch.manual_seed(seed)
    library, name = full_name.split(":")
    if library not in ("timm", "torchvision"):
        import families_networks

        return families_networks.build(full_name, seed)
    if library == "timm":
        import timm

        model: Any = timm.create_model(name, pretrained=False)
        default = int(model.default_cfg["input_size"][-1])
    else:
        import torchvision.models

        quick = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        model = torchvision.models.get_model(name, weights=None, **quick)
        default = 299 if name == "inception_v3" else 224
    example = _example(model, default)
    randomise(model, example)
    return model.eval(), example


def _example(model: nn.Module, default: int) -> Tensor:
    sides = SIDES if sum(p.numel() for p in model.parameters()) < SMALL_SIDE_FROM else (64, *SIDES)
    for side in sides:
        example = torch.randn(2, 3, side or default, side or default)
        try:
            with torch.no_grad():
                model.eval()(example)
                model.train()(example)
        except Exception:
            if side is None:
                raise
        else:
            return example
    raise AssertionError("the last side either runs or raises")


@torch.no_grad()
def randomise(model: nn.Module, example: Tensor) -> None:
    """Set every parameter and norm statistic to a random value that matters: no zero, no unit scale, no tiny gamma."""
    scales = {
        id(p)
        for m in model.modules()
        if not isinstance(m, (nn.Linear, nn.modules.conv._ConvNd))
        for p in m.parameters(recurse=False)
    }
    for name, parameter in model.named_parameters():
        last = name.rsplit(".", 1)[-1]
        if not parameter.is_floating_point():
            continue
        if "bias" in last or last in ("beta", "pos_embed"):
            parameter.normal_(0, 0.2)
        elif id(parameter) in scales or parameter.dim() < 2:
            parameter.uniform_(0.5, 1.5)
        else:
            parameter.normal_(0, math.sqrt(1.5 / max(1, parameter[0].numel())))
    norms: list[Any] = [m for m in model.modules() if isinstance(getattr(m, "running_mean", None), Tensor)]
    momenta = [m.momentum for m in norms]
    for norm in norms:
        norm.momentum = 1.0  # one pass makes the statistics those of the data, so that signals neither die nor explode
    model.train()(example)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        spread = norm.running_var.add(1e-3).sqrt()
        norm.running_mean.add_(0.2 * spread * torch.randn_like(spread))
        norm.running_var.copy_(spread.square() * torch.empty_like(spread).uniform_(0.7, 1.4))
