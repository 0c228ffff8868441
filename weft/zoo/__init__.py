"""The model zoo: published networks, each written to match the table of its paper; classifiers return logits.

from weft import zoo

model = zoo.resnet20(classes=10)
model = zoo.find("vgg16")(classes=100)
"""

from .alexnet import alexnet as alexnet
from .convnext import convnext as convnext
from .convnext import convnext_tiny as convnext_tiny
from .densenet import densenet as densenet
from .densenet import densenet121 as densenet121
from .densenet import densenet169 as densenet169
from .efficientnet import efficientnet as efficientnet
from .efficientnet import efficientnet_b0 as efficientnet_b0
from .efficientnet import efficientnet_b1 as efficientnet_b1
from .googlenet import googlenet as googlenet
from .gpt import gpt as gpt
from .gpt import gpt2 as gpt2
from .inception import inception_v3 as inception_v3
from .inception_resnet import inception_resnet_v2 as inception_resnet_v2
from .lenet import lenet5 as lenet5
from .lenet import lenet5_classic as lenet5_classic
from .lenet import lenet_300_100 as lenet_300_100
from .lenet import small_cnn as small_cnn
from .mobilenet import mobilenet_v1 as mobilenet_v1
from .mobilenet import mobilenet_v2 as mobilenet_v2
from .published import load_published as load_published
from .recurrent import char_lstm as char_lstm
from .registry import find as find
from .registry import names as names
from .resnet import resnet as resnet
from .resnet import resnet18 as resnet18
from .resnet import resnet18_cifar as resnet18_cifar
from .resnet import resnet20 as resnet20
from .resnet import resnet32 as resnet32
from .resnet import resnet34 as resnet34
from .resnet import resnet44 as resnet44
from .resnet import resnet50 as resnet50
from .resnet import resnet56 as resnet56
from .resnet import resnet101 as resnet101
from .resnet import resnet110 as resnet110
from .resnet import resnet152 as resnet152
from .resnet import resnet_cifar as resnet_cifar
from .simple import linear_regression as linear_regression
from .simple import logistic_regression as logistic_regression
from .simple import mlp as mlp
from .simple import perceptron as perceptron
from .unet import unet as unet
from .vgg import vgg as vgg
from .vgg import vgg11 as vgg11
from .vgg import vgg11_bn as vgg11_bn
from .vgg import vgg13 as vgg13
from .vgg import vgg13_bn as vgg13_bn
from .vgg import vgg16 as vgg16
from .vgg import vgg16_bn as vgg16_bn
from .vgg import vgg19 as vgg19
from .vgg import vgg19_bn as vgg19_bn
from .vit import vit as vit
from .vit import vit_base as vit_base
from .vit import vit_small as vit_small
from .vit import vit_tiny as vit_tiny
