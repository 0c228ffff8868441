"""The model zoo: published networks, each written to match the table of its paper; classifiers return logits.

from weft import zoo

model = zoo.resnet20(classes=10)
model = zoo.find("vgg16")(classes=100)
"""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
