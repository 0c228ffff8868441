"""Which libraries publish weights for which networks, and under which names."""

from __future__ import annotations

from . import convolutional as cnn
from . import transformers
from .naming import CAFFE, HALF, KERAS_ROLES, Naming

_VGG = (Naming("torchvision", cnn.vgg_torchvision), Naming("timm", cnn.vgg_timm))
_KERAS_VGG = Naming(
    "keras", cnn.vgg_keras, CAFFE, roles=KERAS_ROLES, channels_last=True, reversed_colours=True,
)  # fmt: skip
_RESNET = (
    Naming("torchvision", cnn.resnet_torchvision),  # and timm
    Naming("hugging face", cnn.resnet_hugging_face, prefix="resnet."),
)
_CIFAR = (
    Naming("cifar repositories", cnn.resnet_cifar, None),
    Naming("torchvision", cnn.resnet_torchvision, None),
)
_OLD_DENSENET = {r"(denselayer\d+\.(?:norm|conv))\.([12]\.)": r"\1\2"}
_DENSENET = (
    Naming("torchvision", cnn.densenet, renamed=_OLD_DENSENET),
    Naming(
        "keras", cnn.densenet_keras, renamed={r"^conv1/": "conv1_"}, roles=KERAS_ROLES, channels_last=True, eps=1.001e-5
    ),
)
_EFFICIENTNET = (Naming("torchvision", cnn.efficientnet_torchvision), Naming("timm", cnn.inverted_timm))
_OLD_VIT = {r"\.mlp\.linear_1\.": ".mlp.0.", r"\.mlp\.linear_2\.": ".mlp.3."}
_NEW_VIT = {  # files of transformers 5 and later
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"\.attention\.q_proj\.": ".attention.attention.query.",
    r"\.attention\.k_proj\.": ".attention.attention.key.",
    r"\.attention\.v_proj\.": ".attention.attention.value.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
    r"^layers\.": "encoder.layer.",
}
_VIT = (
    Naming("timm", transformers.vit_timm, HALF),
    Naming("torchvision", transformers.vit_torchvision, renamed=_OLD_VIT),
    Naming("hugging face", transformers.vit_hugging_face, HALF, prefix="vit.", renamed=_NEW_VIT, ignored=r"^pooler\."),
)
_GPT2 = (
    Naming(
        "hugging face", transformers.gpt2_hugging_face, None, prefix="transformer.", ignored=r"\.attn\.(masked_)?bias$",
        tied={"lm_head.weight": "wte.weight"},
    ),
)  # fmt: skip

# The first library of each network is the one whose weights are most common.
NAMINGS: dict[str, tuple[Naming, ...]] = {
    "lenet5": (Naming("caffe", cnn.in_order("conv1", "conv2", "ip1", "ip2"), None),),
    "alexnet": (
        Naming(
            "torchvision",
            cnn.in_order(*(f"features.{n}" for n in (0, 3, 6, 8, 10)), *(f"classifier.{n}" for n in (1, 4, 6))),
        ),
    ),
    **dict.fromkeys(("vgg11", "vgg13", "vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn"), _VGG),
    **dict.fromkeys(("vgg16", "vgg19"), (*_VGG, _KERAS_VGG)),
    "googlenet": (
        Naming("torchvision", cnn.googlenet_torchvision, HALF, ignored=r"^aux[12]\."),
        Naming("caffe", cnn.googlenet_caffe, None, ignored=r"^loss[12]/"),
    ),
    "inception_v3": (Naming("torchvision", cnn.inception_v3, HALF, ignored=r"^AuxLogits\."),),
    "inception_resnet_v2": (Naming("timm", cnn.inception_resnet_v2_timm, HALF),),
    **dict.fromkeys(("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"), _RESNET),
    **dict.fromkeys(("resnet18_cifar", "resnet20", "resnet32", "resnet44", "resnet56", "resnet110"), _CIFAR),
    **dict.fromkeys(("densenet121", "densenet169"), _DENSENET),
    **dict.fromkeys(("squeezenet1_0", "squeezenet1_1"), (Naming("torchvision", cnn.squeezenet),)),
    "mobilenet_v1": (Naming("timm", cnn.mobilenet_v1_timm, HALF),),
    "mobilenet_v2": (Naming("torchvision", cnn.mobilenet_v2_torchvision), Naming("timm", cnn.inverted_timm)),
    **dict.fromkeys(("efficientnet_b0", "efficientnet_b1"), _EFFICIENTNET),
    "efficientnet_lite0": (
        Naming("efficientnet-pytorch", cnn.efficientnet_lite_original, HALF),
        Naming("timm", cnn.inverted_timm, HALF),
    ),
    "convnext_tiny": (
        Naming("torchvision", cnn.convnext_torchvision),
        Naming("timm", cnn.convnext_timm),
        Naming("hugging face", cnn.convnext_hugging_face, prefix="convnext."),
    ),
    **dict.fromkeys(("vit_tiny", "vit_small", "vit_base"), _VIT),
    **dict.fromkeys(("gpt", "gpt2"), _GPT2),
}
