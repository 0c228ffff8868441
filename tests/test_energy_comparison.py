"""The modelled energy of a network in several forms: the cache model, the counts of each form, and how they are shown."""

import json
from dataclasses import replace

import pytest

import weft
from weft import insight, nn
from weft.cli.profile import profile as profile_command
from weft.errors import Scope, UserError
from weft.insight.energy_comparison import EnergyComparison, EnergyForm
from weft.insight.energy_counts import CacheModel, cache_bytes, in_format, kernel_counts
from weft.insight.layer_profile import KernelProfile
from weft.insight.profile import profile_of
from weft.runtime import Device
from weft.runtime import device as find_device

MB = 1e6


def kernel(
    flops: float = 2e6, nbytes: float = 4 * MB, persistent: float = 0.0, live: int = 1000, name: str = "matmul 1x8x8",
    format: str = "float32",
) -> KernelProfile:  # fmt: skip
    return KernelProfile(
        0, name, 1e-3, flops, nbytes, 1e-4, live, format, 0.0, ((Scope("fc"), 1.0),), (), 0, persistent
    )


def levels(one: KernelProfile, cache: CacheModel) -> dict[str, float]:
    return {level: n for level, n in kernel_counts(one, cache).nbytes.items() if level != "register"}


# --- the cache model --------------------------------------------------------------------------------------------------------------


def test_weights_that_do_not_fit_the_cache_come_from_dram_in_every_call():
    layers = [kernel(persistent=3 * MB)] * 4
    fits, does_not = (CacheModel.of(nbytes, layers, 12 * MB) for nbytes in (13 * MB, 11 * MB))
    assert levels(layers[0], fits) == {"l3": 4 * MB}
    assert levels(layers[0], does_not) == {"l3": 1 * MB, "dram": 3 * MB}  # activations stay in the cache


def test_weights_survive_only_beside_the_activations():
    layers = [kernel(persistent=3 * MB, live=int(2 * MB))]
    assert CacheModel.of(5 * MB, layers, 3 * MB).keeps
    assert not CacheModel.of(4.9 * MB, layers, 3 * MB).keeps


def test_weights_that_are_read_twice_need_room_once_and_tables_only_for_what_is_read():
    assert CacheModel.of(4 * MB, [kernel(persistent=3 * MB)] * 2, 3 * MB).keeps
    assert CacheModel.of(4 * MB, [kernel(persistent=3 * MB)], 500 * MB).keeps  # an embedding


def test_activations_that_do_not_fit_come_from_dram():
    assert levels(kernel(live=int(9 * MB)), CacheModel(8 * MB, True)) == {"dram": 4 * MB}


def test_a_program_knows_which_of_its_bytes_outlive_a_call():
    net = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64)).eval()
    found = weft.profile(net, weft.ones((1, 256)), repeats=1)
    parameters = 4 * (256 * 128 + 128 + 128 * 64 + 64)
    assert sum(one.persistent for one in found.kernels) == pytest.approx(parameters + 4 * 256, rel=0.02)
    assert found.explanation.memory.persistent == pytest.approx(parameters + 4 * 256, rel=0.02)
    small = profile_of(found.explanation)
    assert small.cache.keeps
    assert not replace(found, cache_bytes=parameters / 2).cache.keeps


def test_what_only_the_first_call_computes_costs_later_ones_nothing():
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(None, 10)).eval()
    x = weft.ones((1, 1, 12, 12))
    net(x)
    dense = weft.profile(net, x, repeats=1)
    weft.compress.prune(net, 0.5)  # masks are applied once
    pruned = weft.profile(net, x, repeats=1)
    assert pruned.explanation.prepared > dense.explanation.prepared
    assert pruned.total.flops == dense.total.flops
    assert pruned.total.nbytes == pytest.approx(dense.total.nbytes, rel=0.01)
    weft.insight.project(pruned, weft.insight.machine("titan-x"))  # kernels without work


def test_a_gpu_has_its_own_cache():
    class FakeGpu:
        is_accelerator, is_host_processor, is_modelled = True, False, False
        hardware_name = Device.hardware_name

        def __init__(self, about: str) -> None:
            self.about = lambda: about

    h200 = insight.machine("h200").on_chip_bytes
    assert h200 is not None
    assert cache_bytes(FakeGpu("NVIDIA H200, 141 GB")) == h200.value
    assert cache_bytes(FakeGpu("Some GPU, 8 GB")) == 0  # everything comes from DRAM
    assert cache_bytes(find_device("cpu")) >= 32 << 20


# --- formats ----------------------------------------------------------------------------------------------------------------------


def test_products_of_integers_are_summed_in_int32():
    counts = kernel_counts(kernel(format="int8"), CacheModel(0, False))
    assert counts.operations == {("multiply", "int8"): 1e6, ("add", "int32"): 1e6}
    assert counts.nbytes["register"] == (1 + 1 + 4) * 1e6
    assert kernel_counts(kernel(), CacheModel(0, False)).operations == {("mac", "float32"): 1e6}
    assert kernel_counts(kernel(name="add 8"), CacheModel(0, False)).operations == {("add", "float32"): 2e6}
    assert kernel_counts(kernel(name="sparse_matmul 1x8"), CacheModel(0, False)).operations == {("mac", "float32"): 1e6}


def test_a_kernel_in_another_format():
    half = in_format(kernel(persistent=2 * MB), "float16")
    assert (half.format, half.nbytes, half.persistent, half.flops) == ("float16", 2 * MB, 1 * MB, 2e6)
    assert in_format(kernel(), "q3.4").nbytes == 1 * MB
    indices = kernel(format="int64")
    assert in_format(indices, "float16") == indices


# --- a network --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def net():
    return nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)).eval()


@pytest.fixture(scope="module")
def found(net):
    before = {name: value.numpy().copy() for name, value in net.named_parameters().items()}
    result = insight.energy_comparison(net, weft.random.normal((1, 256)))
    assert all((value.numpy() == before[name]).all() for name, value in net.named_parameters().items())
    return result


def test_the_forms_of_a_network(found):
    assert [form.name for form in found.forms] == [
        "float32",
        "float16",
        "int8",
        "q7.8",
        "sparse",
        "shared",
        "int4 weights",
    ]
    assert [form.name for form in found.forms if not form.own_program] == ["float16", "q7.8"]
    first = found["float32"]
    assert first.joules == pytest.approx(sum(first.by_group.values()))
    assert found["float16"].by_group["l3"] == pytest.approx(first.by_group["l3"] / 2)
    quarter = first.by_group["l3"] / 4
    assert quarter < found["int8"].by_group["l3"] < 1.2 * quarter  # scales and biases stay in float
    assert "int8" in found["int8"].formats
    assert found["shared"].by_group["l3"] < found["sparse"].by_group["l3"] < 0.3 * first.by_group["l3"]
    assert found["sparse"].by_group["arithmetic"] < 0.15 * first.by_group["arithmetic"]
    assert {"layers.0", "layers.2"} <= set(first.layers) & set(found["int8"].layers) & set(found["sparse"].layers)


def test_energy_by_layer_is_that_of_the_profile(net, found):
    one = weft.profile(net, weft.ones((1, 256)), repeats=1)
    assert found["float32"].joules == pytest.approx(one.total.joules)
    by_layer = {layer.label: layer.joules for layer in one.by_layer}
    assert sum(found["float32"].layers["layers.2"].values()) == pytest.approx(by_layer["layers.2"])


def test_what_moved(found):
    moved = found.moved("int8")
    assert all(change < 0 for change in (moved["arithmetic"], moved["register"], moved["l3"]))
    assert sum(moved.values()) == pytest.approx(found["int8"].joules - found["float32"].joules)
    assert abs(next(iter(moved.values()))) == max(map(abs, moved.values()))
    text = str(found)
    assert "what moved, against float32" in text
    assert "the float32 program's" in text
    assert "energy: modelled" in text
    known = json.loads(json.dumps(found.to_dict()))
    assert known["modelled"] is True
    assert known["forms"][2]["by_cause"]["multiply int8"] > 0


def test_a_network_without_an_int8_program_is_modelled_and_says_why():
    class Two(nn.Module):
        def __init__(self):
            self.fc = nn.Linear(16, 8)

        def forward(self, x):
            return self.fc(x), x

    found = insight.energy_comparison(Two(), weft.ones((1, 16)), forms=("float32", "int8"))
    assert not found["int8"].own_program
    assert "one result is required, got a tuple" in found["int8"].note
    assert "int8" in found["int8"].formats
    plain = insight.energy_comparison(nn.Sequential(nn.ReLU()), weft.ones((1, 16)), forms=("float32", "sparse"))
    assert [form.name for form in plain.forms] == ["float32"]
    assert "sparse: cannot be made of this network: " in str(plain)
    with pytest.raises(UserError, match="none of the forms can be made. sparse: "):
        insight.energy_comparison(nn.Sequential(nn.ReLU()), weft.ones((1, 16)), forms=("sparse",))


def test_a_network_in_training_stays_so():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    assert model.training
    insight.energy_comparison(model, weft.ones((2, 8)), forms=("float32", "sparse"))
    assert all(part.training for part in model.modules())


def test_other_networks_stand_beside_it(net):
    small = weft.profile(nn.Linear(256, 10).eval(), weft.ones((1, 256)), repeats=1)
    found = insight.energy_comparison(net, weft.ones((1, 256)), forms=("float32",), against={"small": small})
    assert found["small"].joules == pytest.approx(small.total.joules)
    assert "small: " in str(found)


def test_unknown_forms_are_refused(net):
    with pytest.raises(UserError, match="a form is a number format or one of int8, sparse.*got 'sparce'"):
        insight.energy_comparison(net, weft.ones((1, 256)), forms=("sparce",))
    with pytest.raises(UserError, match="a form or more is required"):
        insight.energy_comparison(net, weft.ones((1, 256)), forms=())
    with pytest.raises(UserError, match="there is no form 'x'. Known are: a"):
        EnergyComparison((EnergyForm("a", {}, True),), 45, 0)["x"]


def test_the_picture_has_a_bar_for_each_form(found):
    picture = insight.energy_svg(replace(found, title="a <network>"))
    assert picture.count("<rect") == 1 + 4 + sum(
        joules > 0 for form in found.forms for joules in form.by_group.values()
    )
    assert "a &lt;network&gt;" in picture
    assert "float16*" in picture
    assert "int8, registers: " in picture
    assert "the float32 program with values of this format" in picture
    alone = EnergyComparison(found.forms[:1], 45, 0)
    assert "the float32 program" not in insight.energy_svg(alone)


# --- the command ------------------------------------------------------------------------------------------------------------------


def test_the_command_compares_forms_and_another_network(tmp_path, capsys):
    picture = tmp_path / "energy.svg"
    profile_command(
        ["mlp", "size=8", "energy=true", "batch=1", "forms=float32,q3.4", "--against", "mlp", f"plot={picture}"]
    )
    text = capsys.readouterr().out
    assert "mlp for 1x8x8 images, 10 classes, infer, batch 1" in text
    assert "q3.4: " in text
    assert f"written: {picture}" in text
    assert picture.read_text().startswith("<svg")
    profile_command(["mlp", "size=8", "energy=true", "batch=1", "forms=float32,float16", "--json"])
    known = json.loads(capsys.readouterr().out)
    assert [form["name"] for form in known["forms"]] == ["float32", "float16"]


def test_the_command_compares_inference_on_one_device():
    with pytest.raises(UserError, match="energy is compared for inference on one device"):
        profile_command(["mlp", "energy=true", "what=train"])
