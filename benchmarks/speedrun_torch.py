"""The contestant torch of speedrun.py: the same network and recipe, channels last, in half precision, an epoch captured as one CUDA graph.

Everything that changes from step to step (the number of the step, the rate, the batch) is on the device, so that nothing but the replay of a
graph is left to the host. On a CPU the same code runs without a graph.
"""

# mypy: disable-error-code="misc, untyped-decorator, no-any-return"
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from speedrun import SHIFT, TESTED, WHITENED, Images, Recipe
from torch import nn
from torch.nn import functional as F

SIZE = 32


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, momentum: float) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.first_norm = _norm(outputs, momentum)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = _norm(outputs, momentum)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.first_norm(F.max_pool2d(self.first(x), 2)))
        return F.gelu(self.second_norm(self.second(x)))


def _norm(features: int, momentum: float) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(features, momentum=momentum)
    norm.weight.requires_grad = False
    return norm


class Network(nn.Module):
    def __init__(self, recipe: Recipe, channels: int) -> None:
        super().__init__()
        patch = 2 * channels * recipe.kernel**2
        self.whitening = nn.Conv2d(channels, patch, recipe.kernel)
        self.whitening.weight.requires_grad = False
        inputs = [patch, *recipe.widths]
        blocks = zip(inputs, recipe.widths, strict=False)
        self.blocks = nn.Sequential(*(Block(a, b, recipe.norm_momentum) for a, b in blocks))
        self.head = nn.Linear(inputs[-1], 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.blocks(F.gelu(self.whitening(x)))
        return self.head(y.amax((2, 3))) / 9

    @torch.no_grad()
    def initialize(self) -> None:
        """Uniform weights, and the identity where a convolution has as many inputs."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                bound = module.weight[0].numel() ** -0.5
                module.weight.uniform_(-bound, bound)
                if module.bias is not None:
                    module.bias.zero_()
            if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
                nn.init.dirac_(module.weight[: module.in_channels])
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
                module.bias.zero_()


class TorchContestant:
    """See `speedrun.Contestant`."""

    def __init__(self, recipe: Recipe, images: Images, most_epochs: int, device: str, mode: str | None) -> None:
        self.recipe, self.device = recipe, torch.device(device)
        self.dtype = torch.float32 if recipe.precision is None else getattr(torch, recipe.precision)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        self.model = Network(recipe, images.x.shape[1]).to(self.device, memory_format=torch.channels_last)
        for module in self.model.modules():  # statistics and shifts stay in float32, as in weft
            if not isinstance(module, nn.BatchNorm2d):
                for p in module.parameters(recurse=False):
                    p.data = p.data.to(self.dtype)
        self.forward: Any = self.model if mode is None else torch.compile(self.model, mode=mode)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.velocities = [torch.zeros_like(p) for p in self.parameters]
        self.is_bias = [p.ndim == 1 for p in self.parameters]
        self._load(images)
        self.steps = len(images.x) // recipe.batch
        shape = (self.steps, recipe.batch)
        self.order = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self.shifts = torch.zeros((*shape, 2), dtype=torch.int64, device=self.device)
        self.mirrored = torch.zeros(shape, dtype=torch.bool, device=self.device)
        self.rates = torch.zeros(self.steps * most_epochs, device=self.device)
        self.done = torch.zeros((), dtype=torch.int64, device=self.device)
        self.graph: Any = None
        self.test_graph: Any = None

    def _load(self, images: Images) -> None:
        """Normalized images on the device, those of training with a border."""
        mean, std = (torch.tensor(v, device=self.device).view(1, -1, 1, 1) for v in (images.mean, images.std))

        def normalized(x: np.ndarray) -> torch.Tensor:
            return ((torch.tensor(x, device=self.device) / 255 - mean) / std).to(self.dtype)

        self.x = F.pad(normalized(images.x), (SHIFT,) * 4, "reflect")
        self.x = self.x.permute(0, 2, 3, 1).contiguous()
        self.y = torch.tensor(images.y, device=self.device).long()
        self.sample = normalized(images.x[:WHITENED])
        self.test_x = normalized(images.test_x).contiguous(memory_format=torch.channels_last)
        self.test_y = torch.tensor(images.test_y, device=self.device).long()
        self.right = torch.zeros((), dtype=torch.int64, device=self.device)

    # --- a run ------------------------------------------------------------------------------------------------------------------

    def start(self, seed: int, epochs: int) -> None:
        torch.manual_seed(seed)
        self.model.initialize()
        self.model.train()
        with torch.no_grad():
            torch._foreach_zero_(self.velocities)
            self.done.zero_()
            self.rates.copy_(torch.from_numpy(self.recipe.rates(self.steps * epochs, len(self.rates))))
            self.sides = torch.rand(len(self.y), device=self.device) < 0.5
        self._wait()

    def whiten(self) -> None:
        kernel = self.recipe.kernel
        patches = F.unfold(self.sample.float(), kernel).permute(1, 0, 2).flatten(1)
        covariance = (patches @ patches.T / patches.shape[1]).double().cpu()
        values, vectors = torch.linalg.eigh(covariance)
        filters = (vectors / (values + 5e-4).sqrt()).T.flip(0).reshape(-1, *self.model.whitening.weight.shape[1:])
        with torch.no_grad():
            self.model.whitening.weight.copy_(torch.cat([filters, -filters]))

    def epoch(self, number: int) -> None:
        shape = self.order.shape
        self.order.copy_(torch.randperm(len(self.y), device=self.device)[: shape.numel()].view(shape))
        self.shifts.copy_(torch.randint(0, 2 * SHIFT + 1, self.shifts.shape, device=self.device))
        self.mirrored.copy_(self.sides[self.order] ^ bool(number % 2))
        self.model.train()
        if self.device.type != "cuda":
            self._steps()
            return
        if self.graph is None:
            self.graph = self._captured(self._steps)
        self.graph.replay()

    def accuracy(self) -> float:
        self.model.eval()
        if self.device.type != "cuda":
            self._evaluate()
        else:
            if self.test_graph is None:
                self.test_graph = self._captured(self._evaluate)
            self.test_graph.replay()
        return self.right.item() / len(self.test_y)

    # --- on the device ----------------------------------------------------------------------------------------------------------

    def _captured(self, work: Any) -> Any:
        """The work as a CUDA graph, after it has run once as it is: what is compiled or chosen by measuring is so by then."""
        other = torch.cuda.Stream()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            work()
            work()
        torch.cuda.current_stream().wait_stream(other)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph

    def _steps(self) -> None:
        for number in range(self.steps):
            self._step(*self._batch(number))

    def _batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Shifted and mirrored images: one gather."""
        index, side = self.order[number], torch.arange(SIZE, device=self.device)
        rows = self.shifts[number, :, :1] + side
        columns = self.shifts[number, :, 1:] + torch.where(self.mirrored[number, :, None], SIZE - 1 - side, side)
        x = self.x[index[:, None, None], rows[:, :, None], columns[:, None, :]]
        return x.permute(0, 3, 1, 2), self.y[index]  # channels last in memory

    def _step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        logits = self.forward(x)
        loss = F.cross_entropy(logits.float(), y, label_smoothing=self.recipe.smoothing, reduction="sum")
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            self._update(gradients)

    def _update(self, gradients: Any) -> None:
        """SGD with Nesterov momentum, the rate read from the device."""
        recipe = self.recipe
        # An index in brackets would be read by the host, which a captured graph cannot do.
        rate = torch.take(self.rates, self.done.clamp(max=len(self.rates) - 1))
        decay = recipe.weight_decay * recipe.batch
        for bias in (False, True):
            which = [i for i, b in enumerate(self.is_bias) if b == bias]
            ps, vs = [self.parameters[i] for i in which], [self.velocities[i] for i in which]
            factor = recipe.bias_rate if bias else 1.0
            gs = torch._foreach_add([gradients[i] for i in which], ps, alpha=decay / factor)
            torch._foreach_mul_(vs, recipe.momentum)
            torch._foreach_add_(vs, gs)
            torch._foreach_add_(gs, vs, alpha=recipe.momentum)
            torch._foreach_mul_(gs, rate * -factor)
            torch._foreach_add_(ps, gs)
        self.done += 1

    @torch.no_grad()
    def _evaluate(self) -> None:
        """How many test images are right, by six views of each."""
        self.right.zero_()
        for begin in range(0, len(self.test_y), TESTED):
            x = self.test_x[begin : begin + TESTED]
            padded = F.pad(x, (1, 1, 1, 1), "reflect")
            shifted = [padded[:, :, i : i + SIZE, i : i + SIZE] for i in (0, 2)]
            logits = self._mirrored(x) * 0.5 + (self._mirrored(shifted[0]) + self._mirrored(shifted[1])) * 0.25
            self.right += (logits.argmax(1) == self.test_y[begin : begin + TESTED]).sum()

    def _mirrored(self, x: torch.Tensor) -> torch.Tensor:
        return (self.forward(x) + self.forward(x.flip(3))).float() * 0.5

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
