"""Everything that follows from the declarations: one test an op and kind of check."""

import pytest

import weft
from sampling import sampled
from weft.graph import OPS
from weft.testing import check_errors, check_op, generator

BUILT_BY_HAND = {"placeholder", "data", "variable", "const", "item", "tag", "transfer", "custom"}
CONTROL = {"call", "cond", "while_loop", "scan"}  # their inputs are graphs; test_grad.py checks them
DECLARED = [
    op
    for op in OPS.values()
    if op.name not in BUILT_BY_HAND | CONTROL
    and not op.internal
    and "_test_" not in op.name
    and op.kind != "collective"  # they need several processes; test_collectives.py checks them
]


@pytest.mark.parametrize("op", DECLARED, ids=lambda op: op.name)
def test_values_and_derivatives(op):
    rng = generator(op.name)
    for _ in sampled(op.name, range(3), share=0.3):
        check_op(op, "reference", rng=rng)


@pytest.mark.parametrize("op", [op for op in DECLARED if op.errors], ids=lambda op: op.name)
def test_texts_of_errors(op):
    check_errors(op)


@pytest.mark.parametrize("op", DECLARED, ids=lambda op: op.name)
def test_null_device_accepts_every_op(op):
    for sample in op.samples(generator(op.name)):
        inputs = tuple(weft.asarray(i, device="null") for i in sample.inputs)
        result = weft.tensor.emit(op, inputs, sample.params)
        for one in weft.tensor.emit_all(op, inputs, sample.params) or (result,):
            assert one.realize().shape == one.shape


def test_every_op_has_what_the_checks_need():
    """A primitive without samples would be checked by nothing."""
    assert [op.name for op in DECLARED if op.samples is None] == []
    with_parameters = [op.name for op in DECLARED if op.params and not op.errors]
    assert with_parameters == []


@pytest.mark.parametrize("op", [op for op in DECLARED if op.vjp], ids=lambda op: op.name)
def test_a_derivative_that_is_one_percent_off_is_caught(op, monkeypatch):
    """The checks must be able to fail: here one cotangent is wrong."""
    right = op.vjp

    position = 1 if op.name in ("where", "grouped_weight") else 0  # a condition and codes have no derivative

    def wrong(*args):
        rules = list(right(*args))
        rule = rules[position]
        rules[position] = lambda: 1.01 * (rule if isinstance(rule, weft.Tensor) else rule())
        return rules

    monkeypatch.setattr(op, "vjp", wrong)
    with pytest.raises(AssertionError):
        check_op(op, rng=generator(op.name))
