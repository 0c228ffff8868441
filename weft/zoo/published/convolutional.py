"""Published names of convolutional networks. Each function walks the network as the zoo builds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ... import nn
from ..convnext import ChannelNorm, ConvNeXtBlock
from ..densenet import DenseLayer
from .naming import Names, WeightSource


def _layers(model: nn.Module) -> list[Any]:
    assert isinstance(model, nn.Sequential)
    return list(model.layers)


def _conv_norm(prefix: str) -> list[str]:
    return [f"{prefix}.conv", f"{prefix}.bn"]


# --- AlexNet, VGG, LeNet ------------------------------------------------------------------------------------------------------


def in_order(*names: str) -> Any:
    """A table for a network whose layers with weights are simply listed."""
    return lambda model: iter(names)


def _vgg(model: nn.Module, top: Sequence[str]) -> Names:
    rest = iter(top)
    for place, layer in enumerate(_layers(model)):
        if isinstance(layer, nn.Conv2d | nn.BatchNorm2d):
            yield f"features.{place}"
        elif isinstance(layer, nn.Linear):
            yield next(rest)


def vgg_torchvision(model: nn.Module) -> Names:
    return _vgg(model, ("classifier.0", "classifier.3", "classifier.6"))


def vgg_timm(model: nn.Module) -> Names:
    return _vgg(model, ("pre_logits.fc1", "pre_logits.fc2", "head.fc"))


def vgg_keras(model: nn.Module) -> Names:
    block = number = 1
    top = iter(("fc1", "fc2", "predictions"))
    for layer in _layers(model):
        if isinstance(layer, nn.BatchNorm2d):
            raise ValueError("Keras has no VGG with batch norm")
        if isinstance(layer, nn.Conv2d):
            yield f"block{block}_conv{number}"
            number += 1
        elif isinstance(layer, nn.MaxPool2d):
            block, number = block + 1, 1
        elif isinstance(layer, nn.Linear):
            name = next(top)
            image = (7, 7) if name == "fc1" else None
            yield {"weight": WeightSource(f"{name}.kernel", image=image), "bias": WeightSource(f"{name}.bias")}


# --- ResNet -------------------------------------------------------------------------------------------------------------------


def _stages(model: nn.Module) -> Iterator[tuple[int, int, nn.Residual]]:
    """Stage and number of each block, both from 0. A block that changes the shape begins a stage, and so does the first one."""
    stage, number = -1, 0
    for layer in _layers(model):
        if isinstance(layer, nn.Residual):
            begins = stage < 0 or layer.shortcut is not None
            stage, number = (stage + 1, 0) if begins else (stage, number + 1)
            yield stage, number, layer


def _resnet(model: nn.Module, shortcut: str, top: str) -> Names:
    yield from ("conv1", "bn1")
    for stage, number, block in _stages(model):
        prefix = f"layer{stage + 1}.{number}"
        for place in range(1, len(_layers(block.body)) + 1):
            yield from (f"{prefix}.conv{place}", f"{prefix}.bn{place}")
        if isinstance(block.shortcut, nn.Sequential):
            yield from (f"{prefix}.{shortcut}.0", f"{prefix}.{shortcut}.1")
    yield top


def resnet_torchvision(model: nn.Module) -> Names:
    return _resnet(model, "downsample", "fc")


def resnet_cifar(model: nn.Module) -> Names:
    """The names of the usual repositories for CIFAR."""
    return _resnet(model, "shortcut", "linear")


def resnet_hugging_face(model: nn.Module) -> Names:
    yield from ("embedder.embedder.convolution", "embedder.embedder.normalization")
    for stage, number, block in _stages(model):
        prefix = f"encoder.stages.{stage}.layers.{number}"
        parts = [f"{prefix}.layer.{place}" for place in range(len(_layers(block.body)))]
        for part in [*parts, *([f"{prefix}.shortcut"] if block.shortcut is not None else [])]:
            yield from (f"{part}.convolution", f"{part}.normalization")
    yield "classifier.1"


# --- DenseNet -----------------------------------------------------------------------------------------------------------------


def densenet(model: nn.Module) -> Names:
    """torchvision and timm."""
    block = number = 0
    yield from ("features.conv0", "features.norm0")
    layers = _layers(model)
    for layer in layers[4:]:
        if isinstance(layer, DenseLayer):
            block, number = (block + 1, 1) if number == 0 else (block, number + 1)
            prefix = f"features.denseblock{block}.denselayer{number}"
            yield from (f"{prefix}.norm1", f"{prefix}.conv1", f"{prefix}.norm2", f"{prefix}.conv2")
        elif isinstance(layer, nn.BatchNorm2d):
            yield "features.norm5" if layer is layers[-4] else f"features.transition{block}.norm"
        elif isinstance(layer, nn.Conv2d):
            yield f"features.transition{block}.conv"
            number = 0
    yield "classifier"


def densenet_keras(model: nn.Module) -> Names:
    block, number = 2, 0
    yield from ("conv1_conv", "conv1_bn")
    layers = _layers(model)
    for layer in layers[4:]:
        if isinstance(layer, DenseLayer):
            number += 1
            prefix = f"conv{block}_block{number}"
            yield from (f"{prefix}_0_bn", f"{prefix}_1_conv", f"{prefix}_1_bn", f"{prefix}_2_conv")
        elif isinstance(layer, nn.BatchNorm2d):
            yield "bn" if layer is layers[-4] else f"pool{block}_bn"
        elif isinstance(layer, nn.Conv2d):
            yield f"pool{block}_conv"
            block, number = block + 1, 0
    yield "predictions"


# --- MobileNet and EfficientNet -----------------------------------------------------------------------------------------------


def _has_shortcut(block: nn.Module) -> bool:
    return isinstance(block, nn.Residual)


def _parts(block: nn.Module) -> list[Any]:
    """The layers of an inverted block that have weights."""
    body = block.body if isinstance(block, nn.Residual) else block
    return [part for part in _layers(body) if not isinstance(part, nn.DropPath)]


def _is_stage_start(place: int, blocks: Sequence[nn.Module]) -> bool:
    """A block without a residual connection changes the shape: it begins a stage."""
    return place == 0 or not _has_shortcut(blocks[place])


def _numbered(blocks: Sequence[nn.Module]) -> Iterator[tuple[int, int, nn.Module]]:
    stage = number = -1
    for place, block in enumerate(blocks):
        stage, number = (stage + 1, 0) if _is_stage_start(place, blocks) else (stage, number + 1)
        yield stage, number, block


def mobilenet_v2_torchvision(model: nn.Module) -> Names:
    layers = _layers(model)
    yield from ("features.0.0", "features.0.1")
    for place, block in enumerate(layers[1:-4], 1):
        last = len(_parts(block)) - 1  # the projection has no activation, and its two layers are not grouped
        yield from (f"features.{place}.conv.{part}.{layer}" for part in range(last) for layer in (0, 1))
        yield from (f"features.{place}.conv.{last}", f"features.{place}.conv.{last + 1}")
    yield from (f"features.{len(layers) - 4}.0", f"features.{len(layers) - 4}.1", "classifier.1")


def efficientnet_torchvision(model: nn.Module) -> Names:
    yield from ("features.0.0", "features.0.1")
    stage = 0
    for stage, number, block in _numbered(_layers(model)[1:-4]):
        for place, part in enumerate(_parts(block)):
            prefix = f"features.{stage + 1}.{number}.block.{place}"
            inner = ("0", "1") if isinstance(part, nn.Sequential) else ("fc1", "fc2")
            yield from (f"{prefix}.{name}" for name in inner)
    yield from (f"features.{stage + 2}.0", f"features.{stage + 2}.1", "classifier.1")


def inverted_timm(model: nn.Module) -> Names:
    """timm's MobileNet v2 and EfficientNet."""
    yield from ("conv_stem", "bn1")
    for stage, number, block in _numbered(_layers(model)[1:-4]):
        parts, prefix = _parts(block), f"blocks.{stage}.{number}"
        convolutions = sum(isinstance(part, nn.Sequential) for part in parts)
        names = iter(("conv_dw", "conv_pw") if convolutions == 2 else ("conv_pw", "conv_dw", "conv_pwl"))
        norm = 0
        for part in parts:
            if isinstance(part, nn.Sequential):
                norm += 1
                yield from (f"{prefix}.{next(names)}", f"{prefix}.bn{norm}")
            else:
                yield from (f"{prefix}.se.conv_reduce", f"{prefix}.se.conv_expand")
    yield from ("conv_head", "bn2", "classifier")


def efficientnet_lite_original(model: nn.Module) -> Names:
    """The names of the first port to PyTorch, in which the blocks are numbered through."""
    yield from ("_conv_stem", "_bn0")
    for number, block in enumerate(_layers(model)[1:-4]):
        parts = (("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))
        for conv, norm in parts[-len(_parts(block)) :]:
            yield from (f"_blocks.{number}.{conv}", f"_blocks.{number}.{norm}")
    yield from ("_conv_head", "_bn1", "_fc")


def mobilenet_v1_timm(model: nn.Module) -> Names:
    yield from ("conv_stem", "bn1")
    stage = number = -1
    for depthwise in _layers(model)[1:-3:2]:
        begins = stage < 0 or depthwise.layers[0].stride not in (1, (1, 1))
        stage, number = (stage + 1, 0) if begins else (stage, number + 1)
        prefix = f"blocks.{stage}.{number}"
        yield from (f"{prefix}.conv_dw", f"{prefix}.bn1", f"{prefix}.conv_pw", f"{prefix}.bn2")
    yield "classifier"


# --- ConvNeXt -----------------------------------------------------------------------------------------------------------------


def _convnext(
    model: nn.Module, stem: Sequence[str], down: str, block: str, inner: Sequence[str], top: Sequence[str]
) -> Names:
    """`down` and `block` have places for the stage and the number; `inner` names the scale and the four layers of a block."""
    yield from stem
    stage = number = 0
    for layer in _layers(model)[2:-3]:
        if isinstance(layer, ConvNeXtBlock):
            prefix = block.format(stage=stage, odd=2 * stage + 1, number=number)
            yield {"scale": WeightSource(f"{prefix}.{inner[0]}")}
            yield from (f"{prefix}.{name}" for name in inner[1:])
            number += 1
        else:
            stage, number = (stage + 1, 0) if isinstance(layer, ChannelNorm) else (stage, number)
            place = 0 if isinstance(layer, ChannelNorm) else 1
            yield f"{down.format(stage=stage, even=2 * stage)}.{place}"
    yield from top


def convnext_torchvision(model: nn.Module) -> Names:
    inner = ("layer_scale", "block.0", "block.2", "block.3", "block.5")
    return _convnext(model, ("features.0.0", "features.0.1"), "features.{even}", "features.{odd}.{number}", inner, ("classifier.0", "classifier.2"))  # fmt: skip


def convnext_timm(model: nn.Module) -> Names:
    inner = ("gamma", "conv_dw", "norm", "mlp.fc1", "mlp.fc2")
    return _convnext(model, ("stem.0", "stem.1"), "stages.{stage}.downsample", "stages.{stage}.blocks.{number}", inner, ("head.norm", "head.fc"))  # fmt: skip


def convnext_hugging_face(model: nn.Module) -> Names:
    inner = ("layer_scale_parameter", "dwconv", "layernorm", "pwconv1", "pwconv2")
    stem = ("embeddings.patch_embeddings", "embeddings.layernorm")
    return _convnext(model, stem, "encoder.stages.{stage}.downsampling_layer", "encoder.stages.{stage}.layers.{number}", inner, ("layernorm", "classifier"))  # fmt: skip


def squeezenet(model: nn.Module) -> Names:
    for place, layer in enumerate(_layers(model)):
        if isinstance(layer, nn.Sequential):
            yield from (f"features.{place}.{part}" for part in ("squeeze", "expand1x1", "expand3x3"))
        elif isinstance(layer, nn.Conv2d):
            yield "features.0" if place == 0 else "classifier.1"


# --- GoogLeNet and Inception --------------------------------------------------------------------------------------------------


def googlenet_torchvision(model: Any) -> Names:
    for name in ("conv1", "conv2", "conv3"):
        yield from _conv_norm(name)
    for name in model.parts:
        for branch in ("branch1", "branch2.0", "branch2.1", "branch3.0", "branch3.1", "branch4.1"):
            yield from _conv_norm(f"inception{name}.{branch}")
    for place, _ in enumerate(model.heads, 1):
        yield from (*_conv_norm(f"aux{place}.conv"), f"aux{place}.fc1", f"aux{place}.fc2")
    yield "fc"


def googlenet_caffe(model: Any) -> Names:
    yield from ("conv1/7x7_s2", "conv2/3x3_reduce", "conv2/3x3")
    for name in model.parts:
        for branch in ("1x1", "3x3_reduce", "3x3", "5x5_reduce", "5x5", "pool_proj"):
            yield f"inception_{name}/{branch}"
    for place, _ in enumerate(model.heads, 1):
        yield from (f"loss{place}/conv", f"loss{place}/fc", f"loss{place}/classifier")
    yield "loss3/classifier"


_A = ("branch1x1", "branch5x5_1", "branch5x5_2", "branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3", "branch_pool")
_B = ("branch3x3", "branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3")
_C = (
    "branch1x1",
    "branch7x7_1",
    "branch7x7_2",
    "branch7x7_3",
    *(f"branch7x7dbl_{n}" for n in range(1, 6)),
    "branch_pool",
)
_D = ("branch3x3_1", "branch3x3_2", *(f"branch7x7x3_{n}" for n in range(1, 5)))
_E = ("branch1x1", "branch3x3_1", "branch3x3_2a", "branch3x3_2b", "branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3a", "branch3x3dbl_3b", "branch_pool")  # fmt: skip
_INCEPTION = {
    "5b": _A,
    "5c": _A,
    "5d": _A,
    "6a": _B,
    "6b": _C,
    "6c": _C,
    "6d": _C,
    "6e": _C,
    "7a": _D,
    "7b": _E,
    "7c": _E,
}


def inception_v3(model: Any) -> Names:
    """torchvision and timm. The auxiliary head stands before the last three modules here, as in the network."""
    for name in ("1a_3x3", "2a_3x3", "2b_3x3", "3b_1x1", "4a_3x3"):
        yield from _conv_norm(f"Conv2d_{name}")
    for module, branches in _INCEPTION.items():
        if module == "7a" and model.aux is not None:
            yield from (*_conv_norm("AuxLogits.conv0"), *_conv_norm("AuxLogits.conv1"), "AuxLogits.fc")
        for branch in branches:
            yield from _conv_norm(f"Mixed_{module}.{branch}")
    yield "fc"


def _residual_inception(prefix: str, branches: Sequence[int]) -> list[str]:
    """A block of Inception-ResNet, given the number of convolutions of each branch; one alone is not numbered."""
    found: list[str] = []
    for branch, count in enumerate(branches):
        names = [f"{prefix}.branch{branch}"] if count == 1 else [f"{prefix}.branch{branch}.{n}" for n in range(count)]
        found += [layer for name in names for layer in _conv_norm(name)]
    return found


def inception_resnet_v2_timm(model: nn.Module) -> Names:
    for name in ("1a", "2a", "2b", "3b", "4a"):
        yield from _conv_norm(f"conv2d_{name}")
    yield from (*_residual_inception("mixed_5b", (1, 2, 3)), *_conv_norm("mixed_5b.branch3.1"))
    for group, count, branches, after in (
        ("repeat", 10, (1, 2, 3), ("mixed_6a", (1, 3))),
        ("repeat_1", 20, (1, 3), ("mixed_7a", (2, 2, 3))),
        ("repeat_2", 9, (1, 3), ("block8", (1, 3))),
    ):
        for number in range(count):
            yield from (*_residual_inception(f"{group}.{number}", branches), f"{group}.{number}.conv2d")
        yield from _residual_inception(*after)
    yield from ("block8.conv2d", *_conv_norm("conv2d_7b"), "classif")
