"""Facts of each network: task, size, cost and what it needs, beside the networks they are about.

Parameters and multiply-adds hold for one example of the input that is named here; a test counts them on the graph of each network.
Those of networks for text hold for a vocabulary of 65 characters, of gpt2 for its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NetworkFacts:
    """What is known about a network without building it."""

    task: str  # classification, regression, segmentation or text
    parameters: int
    macs: int | None = None  # multiply-adds of one example; of a text they depend on its length
    input: tuple[int, int, int] | None = None  # channels, height, width
    classes: int | None = None
    needs_size: bool = (
        False  # whether images must have the size of `input`, unless it is given when the network is built
    )
    takes_vectors: bool = False  # whether it flattens what it is given
    rate_scale: float = 1.0  # of the usual learning rate


FACTS: dict[str, NetworkFacts] = {
    "linear_regression": NetworkFacts("regression", 7_850, 7_840, (1, 28, 28), 10, takes_vectors=True),
    "logistic_regression": NetworkFacts("classification", 7_850, 7_840, (1, 28, 28), 10, takes_vectors=True),
    "perceptron": NetworkFacts("classification", 7_850, 7_840, (1, 28, 28), 10, takes_vectors=True),
    "mlp": NetworkFacts("classification", 266_610, 266_200, (1, 28, 28), 10, takes_vectors=True),
    "lenet_300_100": NetworkFacts("classification", 266_610, 266_200, (1, 28, 28), 10, needs_size=True, takes_vectors=True),
    "lenet5": NetworkFacts("classification", 431_080, 2_293_000, (1, 28, 28), 10, needs_size=True),
    "lenet5_classic": NetworkFacts("classification", 61_706, 416_520, (1, 28, 28), 10, needs_size=True),
    "small_cnn": NetworkFacts("classification", 1_199_882, 11_992_448, (1, 28, 28), 10),
    "alexnet": NetworkFacts("classification", 61_100_840, 714_188_480, (3, 224, 224), 1000, needs_size=True),
    "vgg11": NetworkFacts("classification", 132_863_336, 7_609_090_048, (3, 224, 224), 1000, needs_size=True),
    "vgg13": NetworkFacts("classification", 133_047_848, 11_308_466_176, (3, 224, 224), 1000, needs_size=True),
    "vgg16": NetworkFacts("classification", 138_357_544, 15_470_264_320, (3, 224, 224), 1000, needs_size=True),
    "vgg19": NetworkFacts("classification", 143_667_240, 19_632_062_464, (3, 224, 224), 1000, needs_size=True),
    "vgg11_bn": NetworkFacts("classification", 132_868_840, 7_609_090_048, (3, 224, 224), 1000),
    "vgg13_bn": NetworkFacts("classification", 133_053_736, 11_308_466_176, (3, 224, 224), 1000),
    "vgg16_bn": NetworkFacts("classification", 138_365_992, 15_470_264_320, (3, 224, 224), 1000),
    "vgg19_bn": NetworkFacts("classification", 143_678_248, 19_632_062_464, (3, 224, 224), 1000),
    "googlenet": NetworkFacts("classification", 6_624_904, 1_498_376_192, (3, 224, 224), 1000),
    "inception_v3": NetworkFacts("classification", 23_834_568, 5_713_216_096, (3, 299, 299), 1000, needs_size=True),
    "inception_resnet_v2": NetworkFacts("classification", 55_843_464, 13_155_794_016, (3, 299, 299), 1000, needs_size=True),
    "resnet18": NetworkFacts("classification", 11_689_512, 1_814_073_344, (3, 224, 224), 1000),
    "resnet34": NetworkFacts("classification", 21_797_672, 3_663_761_408, (3, 224, 224), 1000),
    "resnet50": NetworkFacts("classification", 25_557_032, 4_089_184_256, (3, 224, 224), 1000),
    "resnet101": NetworkFacts("classification", 44_549_160, 7_801_405_440, (3, 224, 224), 1000),
    "resnet152": NetworkFacts("classification", 60_192_808, 11_513_626_624, (3, 224, 224), 1000),
    "resnet18_cifar": NetworkFacts("classification", 11_173_962, 555_422_720, (3, 32, 32), 10),
    "resnet20": NetworkFacts("classification", 269_722, 40_551_040, (3, 32, 32), 10),
    "resnet32": NetworkFacts("classification", 464_154, 68_862_592, (3, 32, 32), 10),
    "resnet44": NetworkFacts("classification", 658_586, 97_174_144, (3, 32, 32), 10),
    "resnet56": NetworkFacts("classification", 853_018, 125_485_696, (3, 32, 32), 10),
    "resnet110": NetworkFacts("classification", 1_727_962, 252_887_680, (3, 32, 32), 10),
    "densenet121": NetworkFacts("classification", 7_978_856, 2_834_161_664, (3, 224, 224), 1000),
    "densenet169": NetworkFacts("classification", 14_149_480, 3_359_843_328, (3, 224, 224), 1000),
    "mobilenet_v1": NetworkFacts("classification", 4_231_976, 568_740_352, (3, 224, 224), 1000),
    "mobilenet_v2": NetworkFacts("classification", 3_504_872, 300_774_272, (3, 224, 224), 1000),
    "efficientnet_b0": NetworkFacts("classification", 5_288_548, 385_814_752, (3, 224, 224), 1000),
    "efficientnet_b1": NetworkFacts("classification", 7_794_184, 569_651_680, (3, 224, 224), 1000),
    "convnext_tiny": NetworkFacts("classification", 28_589_128, 4_455_531_264, (3, 224, 224), 1000),
    "unet": NetworkFacts("segmentation", 31_031_810, 36_881_367_040, (3, 224, 224), 2),
    "char_lstm": NetworkFacts("text", 280_897, rate_scale=3.0),
    "gpt": NetworkFacts("text", 10_770_816, rate_scale=0.3),
    "gpt2": NetworkFacts("text", 124_439_808),
    "vit_tiny": NetworkFacts("classification", 5_717_416, 1_253_683_200, (3, 224, 224), 1000, needs_size=True),
    "vit_small": NetworkFacts("classification", 22_050_664, 4_598_882_304, (3, 224, 224), 1000, needs_size=True),
    "vit_base": NetworkFacts("classification", 86_567_656, 17_563_828_224, (3, 224, 224), 1000, needs_size=True),
}  # fmt: skip

USUAL_RATES = {"adam": 3e-3, "adamw": 3e-3, "sgd": 0.05}  # peaks that work for most small networks
OTHER_RATE = 1e-3  # of all other optimizers
LARGE, LARGE_SCALE = 5_000_000, 1 / 3  # networks with more parameters than this get a smaller rate


def default_rate(name: str, optimizer: str, parameters: int) -> float:
    """The peak of the learning rate that is used if nobody gives one.

    >>> default_rate("lenet5", "adam", 431_080), default_rate("gpt", "sgd", 100_000)
    (0.003, 0.015)
    """
    scale = FACTS[name].rate_scale * (LARGE_SCALE if parameters > LARGE else 1.0)
    return USUAL_RATES.get(optimizer, OTHER_RATE) * scale
