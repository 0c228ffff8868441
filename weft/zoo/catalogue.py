"""The catalogue of networks: names, facts and default learning rates, read from the source of the zoo without importing it.

Importing a network imports layers, ops and the compiler. `weft models` and `weft job submit` need only what the decorators `@network`
say, and those have literal arguments.
"""

from __future__ import annotations

import ast
from pathlib import Path

from .facts import NetworkFacts

# The modules that define networks, in the order in which networks are listed.
MODULES = (
    "simple", "lenet", "alexnet", "vgg", "googlenet", "inception", "inception_resnet", "resnet", "densenet", "squeezenet",
    "mobilenet", "efficientnet", "convnext", "unet", "recurrent", "gpt", "vit", "whitened",
)  # fmt: skip


def declared_networks(source: str) -> dict[str, NetworkFacts]:
    """The networks that a module declares, with their facts.

    >>> declared_networks("@network('text', parameters=7)\\ndef tiny(): ...")
    {'tiny': NetworkFacts(task='text', parameters=7, ...)}
    """
    found = {}
    functions = [statement for statement in ast.parse(source).body if isinstance(statement, ast.FunctionDef)]
    for function in functions:
        for call in function.decorator_list:
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "network":
                task = ast.literal_eval(call.args[0])
                facts = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
                found[function.name] = NetworkFacts(task, **facts)
    return found


def _read_modules() -> dict[str, dict[str, NetworkFacts]]:
    folder = Path(__file__).parent
    return {name: declared_networks((folder / f"{name}.py").read_text(encoding="utf-8")) for name in MODULES}


_BY_MODULE = _read_modules()
FACTS: dict[str, NetworkFacts] = {name: facts for found in _BY_MODULE.values() for name, facts in found.items()}
MODULE_OF: dict[str, str] = {name: module for module, found in _BY_MODULE.items() for name in found}

ALIASES = {"lenet": "lenet5", "lstm": "char_lstm"}  # short names

DEFAULT_RATES = {"adam": 3e-3, "adamw": 3e-3, "sgd": 0.05}  # peaks that work for most small networks
OTHER_RATE = 1e-3  # of all other optimizers
LARGE, LARGE_SCALE = 5_000_000, 1 / 3  # networks with more parameters than this get a smaller rate


def default_rate(name: str, optimizer: str, parameters: int) -> float:
    """The peak learning rate that is used if none is given.

    >>> default_rate("lenet5", "adam", 431_080), default_rate("gpt", "sgd", 100_000)
    (0.003, 0.015)
    """
    facts = FACTS.get(ALIASES.get(name, name))  # none of a network that is written as text
    scale = (1.0 if facts is None else facts.rate_scale) * (LARGE_SCALE if parameters > LARGE else 1.0)
    return DEFAULT_RATES.get(optimizer, OTHER_RATE) * scale
