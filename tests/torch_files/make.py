"""Writes the files of this folder with PyTorch (2.13): python tests/torch_files/make.py. They are kept, because weft's tests have no PyTorch."""

import collections
from pathlib import Path

import torch
from torch import nn

FOLDER = Path(__file__).parent
BASE = torch.arange(24, dtype=torch.float32).reshape(4, 6)


def state_dict() -> dict[str, torch.Tensor]:
    """Views with shared storages and all strides, and every dtype."""
    found = collections.OrderedDict(plain=BASE.clone(), transposed=BASE.t(), slice=BASE[1:3, ::2], shared=BASE)
    found["expanded"] = torch.tensor([2.0]).expand(3, 4)
    found["scalar"], found["empty"] = torch.tensor(3), torch.zeros(0, 3)
    for name in ("float64", "float16", "bfloat16", "uint8", "int8", "int16", "int32", "int64"):
        found[f"dtype.{name}"] = torch.tensor([0, 1, 2, 100]).to(getattr(torch, name))
    found["dtype.bool"] = torch.tensor([True, False, True])
    found["parameter"] = nn.Parameter(torch.tensor([1.5, -2.5]))
    return found


def main() -> None:
    torch.manual_seed(0)
    torch.save(state_dict(), FOLDER / "zip.pth")
    torch.save(state_dict(), FOLDER / "protocol4.pth", pickle_protocol=4)
    torch.save(state_dict(), FOLDER / "legacy.pth", _use_new_zipfile_serialization=False)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))
    optimizer = {"rate": 0.1, "state": {0: {"momentum": torch.zeros(2)}}}
    torch.save({"epoch": 3, "state_dict": net.state_dict(), "optimizer": optimizer}, FOLDER / "checkpoint.pth")
    torch.save(net, FOLDER / "module.pth")
    small = {
        "uint16": torch.tensor([1, 65535], dtype=torch.uint16),
        "float8": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
    }
    torch.save(small, FOLDER / "untyped.pth")
    torch.serialization.set_crc32_options(False)
    torch.save({"w": BASE}, FOLDER / "no_checksums.pth")


if __name__ == "__main__":
    main()
