"""What tests of algorithms on GPUs share."""

import numpy as np

import weft
from weft.testing import counted


def defined(f, *arrays):
    """The results by definition, in float64."""
    with weft.knobs.set(device="reference"):
        found = f(*(weft.asarray(a.astype(np.float64)) for a in arrays))
        return [r.numpy() for r in (found if isinstance(found, tuple) else (found,))]


def near(actual, expected, tolerance):
    np.testing.assert_allclose(
        np.asarray(actual, np.float64), expected, rtol=0, atol=tolerance * (np.abs(expected).max() or 1)
    )
    counted()


def plans(program):
    return {kernel.anchor.op.name: plan.name for kernel, plan in program.plans.items()}
