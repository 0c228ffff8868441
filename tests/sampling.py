"""How much of the tests a run takes: `all` of them, the usual `sample`, or only the `fast` ones. WEFT_TESTS says which.

    make test-all      WEFT_TESTS=all      every case of every sweep
    make test          WEFT_TESTS=sample   sweeps are sampled: some cases of each, and at least one of every class of them
    make test FAST=1   WEFT_TESTS=fast     fewer cases of sweeps, some cases of all other tests with parameters, none of the files in
                                           SLOW_FILES; compiled code of earlier runs is used everywhere

A sweep is one test for many ops, dtypes, shapes or networks. Either it is marked, with the parameters whose values make a class, or it
asks `sampled` for its cases, or `some` for a number of random trials:

    @pytest.mark.sweep("op", share=0.3)  # every op at least once, three cases of ten in all

    for sample, dtype in sampled(op.name, cases, share=0.3, of=lambda case: case[1]):  # every dtype at least once

Programs that tests compile are optimized by LLVM in `all`, and in the files of OPTIMIZED. They run on all cores there, and in the files of
THREADED; on one thread elsewhere, where compiled code of earlier runs is used, too.

A test that is marked `slow` takes many seconds and checks once more, in another way, what quicker tests check too: only `all` takes it.

What is taken depends on the seed (printed at the end of a run, chosen by WEFT_TEST_SEED) and on the name, on nothing else. Regression
tests are never sampled.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

MODES = ("all", "sample", "fast")
SAMPLE_SHARE = 0.15  # of the share that a sweep names, beyond one case of every class: the suite has to fit in a quarter of an hour on two cores
FAST_SHARE = 0.1  # of it for the fast tests
FAST_SHARE_OF_OTHERS = 0.15  # of the cases of tests that are no sweeps
NEVER_SAMPLED = ("test_regressions.py",)

Case = TypeVar("Case")


def seed() -> int:
    # Imported late: conftest.py asks for the mode before it sets what weft reads when it is imported.
    from weft.testing import seed

    return seed()


def mode() -> str:
    """How much this run takes."""
    found = os.environ.get("WEFT_TESTS", "sample")
    if found not in MODES:
        raise ValueError(f"[tests] WEFT_TESTS must be one of {', '.join(MODES)}, got {found!r}.")
    return found


def sampled(
    name: str, cases: Iterable[Case], *, share: float, of: Callable[[Case], Hashable] = lambda case: None
) -> list[Case]:
    """A share of the cases, in their order, with at least one of every class that `of` tells."""
    everything = list(cases)
    if mode() == "all":
        return everything
    order = list(range(len(everything)))
    random.Random(f"{seed()} {name}").shuffle(order)
    classes: set[Hashable] = set()
    taken, others = set(), []
    for i in order:
        if of(everything[i]) in classes:
            others.append(i)
        else:
            classes.add(of(everything[i]))
            taken.add(i)
    wanted = round(len(everything) * share * _scale())
    taken.update(others[: max(0, wanted - len(taken))])
    return [case for i, case in enumerate(everything) if i in taken]


def some(count: int, share: float = 0.4) -> int:
    """How many random trials to make where all tests make so many."""
    if mode() == "all":
        return count
    return max(1, round(count * share * _scale()))


def _scale() -> float:
    return FAST_SHARE if mode() == "fast" else SAMPLE_SHARE


def left_out(items: Sequence[Any]) -> list[Any]:
    """The tests, and the cases of tests with parameters, that this run does not take."""
    tests: dict[str, list[Any]] = {}
    slow = [item for item in items if mode() != "all" and item.get_closest_marker("slow")]
    for item in items:
        if item.get_closest_marker("sweep") or (mode() == "fast" and _may_be_sampled(item)):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return [*slow, *(item for name, cases in tests.items() for item in _left_out(name, cases))]


def _may_be_sampled(item: Any) -> bool:
    return hasattr(item, "callspec") and item.path.name not in NEVER_SAMPLED


def _left_out(name: str, cases: Sequence[Any]) -> list[Any]:
    marker = cases[0].get_closest_marker("sweep")
    classes = marker.args if marker else ()

    def of(item: Any) -> Hashable:
        return tuple(repr(item.callspec.params[parameter]) for parameter in classes)

    share = marker.kwargs["share"] if marker else FAST_SHARE_OF_OTHERS / FAST_SHARE
    taken = set(sampled(name, cases, share=share, of=of))
    return [item for item in cases if item not in taken]


def is_left_out(path: Path) -> bool:
    """Whether this run leaves out a whole file."""
    return (mode() == "fast" and path.stem in SLOW_FILES) or (mode() != "all" and path.stem in ONLY_IN_ALL)


def is_optimized(path: Path) -> bool:
    """Whether LLVM optimizes the programs that the tests of a file compile."""
    return mode() == "all" or path.stem in OPTIMIZED


def is_threaded(path: Path) -> bool:
    """Whether the programs that the tests of a file compile run on all cores."""
    return is_optimized(path) or path.stem in THREADED


# Files whose subject is the code that is compiled for CPUs. All others compile without LLVM's optimizations, which were a third of their time:
# that code computes the same bits (test_unoptimized.py), and make test-all optimizes everywhere.
OPTIMIZED = {
    "test_algorithms", "test_aot", "test_aot_c", "test_cache", "test_compiler_random", "test_conv_plans", "test_convolutions", "test_cpu",
    "test_fuzz", "test_gemm", "test_int8", "test_jit_agrees", "test_library", "test_long_sums", "test_maths", "test_nonfinite",
    "test_pooling_windows", "test_regressions", "test_sparse", "test_special", "test_special_values", "test_sums", "test_top_k",
    "test_unoptimized",
}  # fmt: skip

# Files whose subject is threads, beside those of OPTIMIZED. Programs of all others run on one thread: every core has a process of tests already,
# and threads would wait for one which has no core. The bits are the same (test_thread_bits.py).
THREADED = {
    "test_captured", "test_compile_growth", "test_constants", "test_control_native", "test_executable_contract", "test_explain",
    "test_jit_threads", "test_profile", "test_slice_update", "test_state_threads", "test_team", "test_thread_bits", "test_thresholds",
    "test_trace", "test_training_step",
}  # fmt: skip

# Files that need a server of another program: make test-all runs them.
ONLY_IN_ALL = {"test_studio_postgresql"}


# Files that take many seconds however few of their cases run: they start processes, train networks, or run under Triton's interpreter.
SLOW_FILES = {
    "test_algorithms", "test_annotations", "test_aot", "test_aot_c", "test_attention_kernels", "test_bench_zoo", "test_caffe_network",
    "test_cli", "test_cli_dataset", "test_cli_learn", "test_cli_measure", "test_cli_optimizers", "test_cli_use", "test_cli_weights",
    "test_collectives", "test_compile_growth", "test_compile_pool", "test_compiler_random", "test_compress_job", "test_compress_methods",
    "test_compress_structured", "test_control_native", "test_conv_plans", "test_convolutions", "test_cuda", "test_cuda_streams",
    "test_cuda_train", "test_cuda_zoo", "test_data_bottleneck", "test_data_parallel", "test_dataset_create", "test_docs", "test_doctor",
    "test_energy_comparison", "test_ensemble", "test_fft", "test_fit", "test_fit_ways", "test_fixed_point", "test_fold_jobs", "test_folds",
    "test_forecast", "test_full_disk", "test_fuzz", "test_gemm", "test_generate", "test_gpu_algorithms", "test_gpu_bench",
    "test_gpu_fft", "test_gpu_fft_compiled", "test_gpu_libraries", "test_gpu_narrow", "test_gpu_program", "test_half_floats",
    "test_health", "test_hostile_files",
    "test_hostile_images", "test_hostile_sources", "test_insight_page", "test_int8", "test_int8_accuracy", "test_int8_network",
    "test_interpret", "test_jit_threads", "test_killed_jobs", "test_kv_cache", "test_label_kinds", "test_launch", "test_library",
    "test_loader", "test_long_sums", "test_maths", "test_memory_timeline", "test_mpi", "test_mutate_files", "test_nccl",
    "test_network_text", "test_onnx_export", "test_onnx_models", "test_onnx_nodes", "test_parameter_server", "test_pipeline", "test_plan",
    "test_pooling_windows", "test_profile_cli", "test_profile_energy", "test_published", "test_queue_files", "test_quotas",
    "test_ray_cluster", "test_recipes", "test_rematerialize", "test_report_page", "test_resident", "test_runner", "test_sampling",
    "test_scheduler", "test_sparse", "test_special", "test_special_values", "test_split_layers", "test_split_training",
    "test_state_threads", "test_step_loops", "test_stopping", "test_studio_accounts_pages", "test_studio_compress", "test_studio_datasets",
    "test_studio_details", "test_studio_doctor", "test_studio_faults", "test_studio_files", "test_studio_folds", "test_studio_home",
    "test_studio_journey", "test_studio_layers", "test_studio_networks", "test_studio_pages", "test_studio_profile", "test_studio_queue",
    "test_studio_roles", "test_studio_run", "test_studio_text", "test_studio_use", "test_studio_viewer", "test_sweep", "test_team",
    "test_thread_bits", "test_thresholds", "test_top_k", "test_training_step", "test_triton", "test_triton_conv", "test_triton_lines",
    "test_triton_parts", "test_triton_special", "test_web", "test_whitened", "test_zoo",
}  # fmt: skip
