"""What layers say when they are used wrongly, and what `check_layer` says of a layer that is wrong."""

import numpy as np
import pytest

import weft
from weft import nn
from weft.testing import LayerCase, check_layer, counted


def x(*shape):
    return weft.zeros(shape)


SETTINGS = [
    (lambda: nn.Linear(0, 2), "[Linear] the number of inputs must be an int of 1 or more, got 0."),
    (lambda: nn.Linear(2, 2.5), "[Linear] the number of outputs must be an int of 1 or more, got 2.5."),
    (lambda: nn.Linear(2, 2, init="he"), "[init] there is no initial value 'he'. Known: zeros, ones"),
    (lambda: nn.Linear(2, 2, activation="rely"), "[activation] there is no activation 'rely'. Known: relu, relu6"),
    (lambda: nn.Linear(2, 2, activation=nn.ReLU), "[activation] a layer is required, got the class ReLU. Write ReLU()."),
    (lambda: nn.activation(3), "[activation] a name, a function or a layer is required, got 3."),
    (lambda: nn.Bilinear(2, -1, 2), "[Bilinear] the number of right features must be an int of 1 or more, got -1."),
    (lambda: nn.Embedding(0, 2), "[Embedding] the number of rows must be an int of 1 or more, got 0."),
    (lambda: nn.Embedding(3, 2, padding=3), "[Embedding] a padding from 0 to 2 is required, got 3."),
    (lambda: nn.Conv2d(3, 4, 0), "[Conv2d] the kernel must be an int of 1 or more, or 2 of them, got 0."),
    (lambda: nn.Conv1d(3, 4, (1, 2)), "[Conv1d] the kernel must be an int of 1 or more, or 1 of them, got (1, 2)."),
    (lambda: nn.Conv2d(3, 4, 3, stride=0), "[Conv2d] the stride must be an int of 1 or more, or 2 of them, got 0."),
    (lambda: nn.Conv2d(3, 4, 3, padding="full"), "[Conv2d] the padding must be 'same', 'valid', an int"),
    (lambda: nn.Conv2d(3, 4, 3, groups=2), "[Conv2d] 3 inputs cannot be divided into 2 groups."),
    (lambda: nn.Conv2d(4, 3, 3, groups=2), "[Conv2d] 3 outputs cannot be divided into 2 groups."),
    (lambda: nn.Conv2d(4, 4, 3, groups=0), "[Conv2d] the number of groups must be an int of 1 or more, got 0."),
    (lambda: nn.Conv2d(3, 4, 3, algorithm="MAGIC"), "[Conv2d] algorithm 'MAGIC': it must be fastest, no_workspace"),
    (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=2),
     "[ConvTranspose2d] an output_padding below the stride is required, got 2 and 2."),
    (lambda: nn.ConvTranspose1d(3, 4, 3, groups=2), "[ConvTranspose1d] 3 inputs cannot be divided into 2 groups."),
    (lambda: nn.DepthwiseConv2d(3, 3, multiplier=0), "[DepthwiseConv2d] the number of filters must be an int of 1 or more, got 0."),
    (lambda: nn.Fold((2, 2), 3), "[Fold] a kernel of (3, 3) does not fit into (2, 2) with padding 0."),
    (lambda: nn.MaxPool2d(0), "[MaxPool2d] the size must be an int of 1 or more, or 2 of them, got 0."),
    (lambda: nn.AvgPool3d(2, padding=-1), "[AvgPool3d] the padding must be"),
    (lambda: nn.AdaptiveAvgPool2d((1, 2, 3)), "[AdaptiveAvgPool2d] the size must be an int of 1 or more, or 2 of them"),
    (lambda: nn.LPPool2d(0.5, 2), "[LPPool2d] the norm must be 1 or more, got 0.5."),
    (lambda: nn.BatchNorm(0), "[BatchNorm] the number of features must be an int of 1 or more, got 0."),
    (lambda: nn.BatchNorm2d(3, momentum=0.0), "[BatchNorm2d] a momentum in (0, 1] is required, got 0.0."),
    (lambda: nn.BatchNorm(3, eps=0.0), "[BatchNorm] the eps must be above 0, got 0.0."),
    (lambda: nn.LayerNorm((3, 0)), "[LayerNorm] sizes of 1 or more are required, got (3, 0)."),
    (lambda: nn.GroupNorm(2, 3), "[GroupNorm] 3 features cannot be divided into 2 groups."),
    (lambda: nn.LRN(0), "[LRN] the number of channels must be an int of 1 or more, got 0."),
    (lambda: nn.LRN(k=0.0), "[LRN] the k must be above 0, got 0.0."),
    (lambda: nn.Dropout(1.0), "[Dropout] a rate in [0, 1) is required, got 1.0."),
    (lambda: nn.Dropout2d(-0.1), "[Dropout2d] a rate in [0, 1) is required, got -0.1."),
    (lambda: nn.DropPath(float("nan")), "[DropPath] a rate in [0, 1) is required, got nan."),
    (lambda: nn.GaussianNoise(-1.0), "[GaussianNoise] the standard deviation must be 0 or more, got -1.0."),
    (lambda: nn.CELU(0.0), "[CELU] the alpha must be above 0, got 0.0."),
    (lambda: nn.GELU("erf"), "[GELU] approximate must be True, False, 'tanh' or 'none', got 'erf'."),
    (lambda: nn.HardTanh(1.0, 1.0), "[HardTanh] low < high is required, got 1.0 and 1.0."),
    (lambda: nn.Softshrink(-1.0), "[Softshrink] the threshold must be 0 or more, got -1.0."),
    (lambda: nn.PReLU(0), "[PReLU] the number of slopes must be an int of 1 or more, got 0."),
    (lambda: nn.Maxout(0), "[Maxout] the number of pieces must be an int of 1 or more, got 0."),
    (lambda: nn.Reshape(-1, -1), "[Reshape] sizes of 1 or more, of which one may be -1, are required, got (-1, -1)."),
    (lambda: nn.Permute(0, 0, 1), "[Permute] each axis from 0 on is required once, got (0, 0, 1)."),
    (lambda: nn.Lambda(3), "[Lambda] a function is required, got 3."),
    (lambda: nn.ZeroPad("same"), "[ZeroPad] an int, or an int or a pair for each spatial dimension, is required, got 'same'."),
    (lambda: nn.Crop(-1), "[Crop] the padding must be"),
    (lambda: nn.Upsample(0), "[Upsample] the scale must be an int of 1 or more"),
    (lambda: nn.Upsample(1.5), "[Upsample] the scale must be an int of 1 or more"),
    (lambda: nn.Upsample(2, "cubic"), "[Upsample] the mode must be 'nearest' or 'bilinear', got 'cubic'."),
    (lambda: nn.PixelShuffle(0), "[PixelShuffle] the scale must be an int of 1 or more, got 0."),
    (lambda: nn.Sequential(weft.relu), "Wrap a function in Lambda."),
    (lambda: nn.Sequential(nn.ReLU(), 3), "[Sequential] modules are required, got 3 at 1."),
    (lambda: nn.ModuleDict({"a": 1}), "[ModuleDict] modules are required, got 1 at 'a'."),
    (lambda: nn.Residual(weft.relu), "[Residual] modules are required"),
]  # fmt: skip

CALLS = [
    (lambda: nn.Linear(3, 2)(x(2, 4)), "[Linear] an input with 3 features in the last dimension is required, got shape (2, 4)."),
    (lambda: nn.Linear(3, 2)(x()), "[Linear] an input (..., features) is required, got shape ()."),
    (lambda: nn.GroupNorm(2)(x(3)), "[GroupNorm] an input (batch, channels, ...) is required, got shape (3,)."),
    (lambda: nn.Linear(None, 2)(x()), "[Linear] an input (..., features) is required, got shape ()."),
    (lambda: nn.Linear(None, 2).parameters(), "weight of shape [2, ?] is not made yet. Call the network once"),
    (lambda: nn.Bilinear(2, 3, 1)(x(1, 2), x(1, 2)), "[Bilinear] an input with 3 features in the last dimension is required"),
    (lambda: nn.Conv2d(3, 4, 3)(x(1, 3, 8)), "[Conv2d] an input (batch, channels, height, width) is required, got shape (1, 3, 8)."),
    (lambda: nn.Conv1d(3, 4, 3)(x(3, 8)), "[Conv1d] an input (batch, channels, length) is required, got shape (3, 8)."),
    (lambda: nn.Conv3d(3, 4, 3)(x(3, 8)), "[Conv3d] an input (batch, channels, depth, height, width) is required"),
    (lambda: nn.Conv2d(3, 4, 3)(x(1, 2, 8, 8)), "[Conv2d] an input with 3 channels is required, got shape (1, 2, 8, 8)."),
    (lambda: nn.Conv2d(None, 4, 3, groups=2)(x(1, 3, 8, 8)), "[Conv2d] 3 inputs cannot be divided into 2 groups."),
    (lambda: nn.Conv2d(3, 4, 3)(x(1, 3, 2, 8)), "[conv] a kernel of 3 does not fit into 2 elements"),
    (lambda: nn.ConvTranspose2d(3, 4, 3)(x(1, 2, 8, 8)), "[ConvTranspose2d] an input with 3 channels is required"),
    (lambda: nn.DepthwiseConv2d(3, 3)(x(1, 2, 8, 8)), "[DepthwiseConv2d] an input with 3 channels is required"),
    (lambda: nn.Unfold(3)(x(1, 1, 2, 2)), "[Unfold] a kernel of (3, 3) does not fit into (2, 2) with padding 0."),
    (lambda: nn.Fold(3, 2)(x(1, 4, 5)), "[Fold] an input (batch, channels * 4, 4) is required, got shape (1, 4, 5)."),
    (lambda: nn.MaxPool2d(2)(x(1, 1, 8)), "[MaxPool2d] an input (batch, channels, height, width) is required"),
    (lambda: nn.AdaptiveMaxPool1d(2)(x(1, 8)), "[AdaptiveMaxPool1d] an input (batch, channels, length) is required"),
    (lambda: nn.BatchNorm(3)(x(2, 4)), "[BatchNorm] an input with 3 channels is required, got shape (2, 4)."),
    (lambda: nn.BatchNorm2d(3)(x(2, 3)),
     "[BatchNorm2d] an input (batch, channels, ...) of 4 dimensions is required, got shape (2, 3)."),
    (lambda: nn.BatchNorm1d(3)(x(2, 3, 1, 1)), "of 2 or 3 dimensions is required, got shape (2, 3, 1, 1)."),
    (lambda: nn.BatchNorm()(x(2)), "[BatchNorm] an input (batch, channels, ...) of 2 or more dimensions is required"),
    (lambda: nn.BatchNorm(3)(x(1, 3)), "[BatchNorm] more than one value of a channel is required in training, got one."),
    (lambda: nn.LayerNorm((2, 3))(x(5, 3)), "[LayerNorm] an input whose shape ends in (2, 3) is required, got (5, 3)."),
    (lambda: nn.RMSNorm(3)(x(5, 2)), "[RMSNorm] an input with 3 features in the last dimension is required"),
    (lambda: nn.GroupNorm(2, 4)(x(5, 2)), "[GroupNorm] an input with 4 channels is required, got shape (5, 2)."),
    (lambda: nn.InstanceNorm(4, affine=True)(x(5, 2, 3)), "[InstanceNorm] an input with 4 channels is required"),
    (lambda: nn.Dropout2d()(x(2, 3)), "[Dropout2d] an input (batch, channels, height, width) is required"),
    (lambda: nn.GaussianNoise(1.0)(weft.arange(3)), "[GaussianNoise] a floating dtype is required, got int64."),
    (lambda: nn.Permute(0, 1)(x(2, 3, 4)), "[Permute] an input of 2 dimensions is required, got shape (2, 3, 4)."),
    (lambda: nn.Reshape(5)(x(2, 3)), "[reshape] shape (2, 3) has 6 elements"),
    (lambda: nn.ZeroPad(1)(x(2, 3)), "[ZeroPad] an input (batch, channels, spatial...) is required, got shape (2, 3)."),
    (lambda: nn.ReflectPad(3)(x(1, 1, 3)), "[pad] mode 'reflect' can add at most 2"),
    (lambda: nn.Crop(2)(x(1, 1, 4)), "[Crop] nothing is left of shape (1, 1, 4) without a border of 2."),
    (lambda: nn.PixelShuffle(2)(x(1, 3, 2, 2)), "[PixelShuffle] channels in multiples of 4 are required"),
    (lambda: nn.PixelUnshuffle(2)(x(1, 3, 3, 2)), "[PixelUnshuffle] height and width in multiples of 2 are required"),
    (lambda: nn.ChannelShuffle(2)(x(1, 3)), "[ChannelShuffle] 3 channels cannot be divided into 2 groups."),
    (lambda: nn.Add()(), "[Add] one or more inputs are required, got none."),
    (lambda: nn.Concat()(), "[Concat] one or more inputs are required, got none."),
    (lambda: nn.Residual(nn.Linear(3, 2))(x(1, 3)),
     "[Residual] body and shortcut of one shape are required, got (1, 2) and (1, 3). Give a shortcut"),
    (lambda: nn.ModuleList([])(x(1)), "[ModuleList] a module needs a method forward"),
    (lambda: nn.ModuleDict({"a": nn.ReLU()})["b"], "[ModuleDict] there is no module 'b'. Known: a."),
    (lambda: nn.Sequential({"a": nn.ReLU()})["b"], "[Sequential] there is no module 'b'. Known: a."),
]  # fmt: skip


def said(call):
    """The text of an error without the line that led to it: here, that line holds the text that is looked for."""
    with pytest.raises(weft.UserError) as error:
        call()
    return f"[{error.value.where}] {error.value.message}"


@pytest.mark.parametrize(("call", "text"), SETTINGS, ids=[text[:40] for _, text in SETTINGS])
def test_bad_settings_are_refused_when_the_layer_is_made(call, text):
    assert text in said(call)
    counted()


@pytest.mark.parametrize(("call", "text"), CALLS, ids=[text[:40] for _, text in CALLS])
def test_bad_inputs_are_refused(call, text):
    assert text in said(call)
    counted()


def test_places_that_do_not_exist():
    with pytest.raises(IndexError, match=r"\[Sequential\] there is no module 3 among 1"):
        nn.Sequential(nn.ReLU())[3]
    counted()


# --- what check_layer finds -----------------------------------------------------------------------------------------------------


class Scale(nn.Module):
    """y = s x: right, and a base for what is wrong."""

    def __init__(self):
        self.s = nn.parameter(3, "ones")

    def forward(self, x):
        return weft.asarray(x) * self.s


class Untrained(Scale):
    """Keeps derivatives from its parameter."""

    def forward(self, x):
        return weft.asarray(x) * self.s.detach()


class Kinked(Scale):
    """Says another derivative than its values have."""

    def forward(self, x):
        return super().forward(x) + weft.stop_gradient(weft.asarray(x) ** 2)


class Shaky(nn.Module):
    """Is random in use."""

    def forward(self, x):
        return x + weft.random.normal(x.shape, dtype=x.dtype)


class Widening(Scale):
    """Does not keep the dtype."""

    def forward(self, x):
        return super().forward(x).astype("float32")


class Hiding(Scale):
    """Has a tensor that is not saved."""

    def __init__(self):
        super().__init__()
        self._t = weft.random.normal((3,))

    def forward(self, x):
        return super().forward(x) + self._t.astype(x.dtype)


class Forgetful(nn.Module):
    """Does always the same in training."""

    def forward(self, x):
        return x * 0.5 if self.training else x


def scaled(p, x):
    return x * p["s"]


WRONG = [
    (LayerCase(Scale, [(2, 3)], (2, 3), lambda p, x: x + p["s"], parameters=3), "Not equal to tolerance"),
    (LayerCase(Scale, [(2, 3)], (3, 2), scaled, parameters=3), "gave shape (2, 3), expected (3, 2)"),
    (LayerCase(Scale, [(2, 3)], (2, 3), scaled, parameters=4), "has 3 parameters, expected 4"),
    (LayerCase(Scale, [(2, 3)], (2, 3), scaled, parameters=3, state=1), "numbers of state, expected 1"),
    (LayerCase(Scale, [(2, 3)], (2, 3), scaled, parameters=3, macs=6), "does 0 multiply-adds, expected 6"),
    (LayerCase(Scale, [(2, 3)], (2, 3), scaled, parameters=3, sized=Scale), "has no unknown sizes"),
    (LayerCase(Scale, [(2, 3)], (2, 3), scaled, parameters=3, random=True), "in training did nothing"),
    (LayerCase(Untrained, [(2, 3)], (2, 3), scaled, parameters=3), "Not equal to tolerance"),
    (LayerCase(Kinked, [(2, 3)], (2, 3), lambda p, x: x * p["s"] + x**2, parameters=3), "Not equal to tolerance"),
    (LayerCase(Shaky, [(2, 3)], (2, 3)), "in use gives other values each time"),
    (LayerCase(Widening, [(2, 3)], (2, 3), scaled, parameters=3), "gave float32, expected bfloat16"),
    (LayerCase(Hiding, [(2, 3)], (2, 3), parameters=3), "in training"),
    (LayerCase(Forgetful, [(2, 3)], (2, 3)), "gives other values in training"),
    (LayerCase(Forgetful, [(2, 3)], (2, 3), random=True), "does always the same"),
    (LayerCase(lambda: nn.Linear(None, 2), [(2, 3)], (2, 2), parameters=8, sized=lambda: nn.Linear(4, 2)), "found {'weight': (2, 3)"),
    (LayerCase(lambda: nn.Linear(None, 2), [(2, 3)], (2, 2), parameters=8), "is not made yet"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "text"), WRONG, ids=[text[:40] for _, text in WRONG])
def test_check_layer_sees_what_is_wrong(case, text):
    with pytest.raises((AssertionError, weft.UserError)) as error:
        check_layer(case)
    assert text in str(error.value)  # the line that led here, which it may begin with, is the one above
    counted()


def test_check_layer_is_content_with_a_right_layer_and_leaves_the_stream_alone():
    weft.seed(5)
    first = weft.random.normal((3,)).numpy()
    weft.seed(5)
    assert check_layer(LayerCase(Scale, [(2, 3)], (2, 3), scaled, parameters=3)) > 30
    assert np.array_equal(weft.random.normal((3,)).numpy(), first)
    counted(2)
