"""What is shown of a training before it starts: planned memory against the step's own plan, augmented images, refusals."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from weft.data.loader import Loader
from weft.errors import UserError
from weft.jobs.job import job_of
from weft.jobs.planned_memory import PlannedMemory, planned_memory
from weft.jobs.recipes import with_recipe
from weft.jobs.training_preview import preview_training
from weft.train.making import make
from weft.train.memory import need, total


def settings(**given: str) -> dict[str, object]:
    return with_recipe("train", {"data": "digits", "model": "lenet5", **given})


def test_the_forecast_is_the_plan_of_the_step() -> None:
    given = settings(batch="32")
    found, job = planned_memory(given), job_of("train", given)
    _, steps = make(job.model(), Loader(job.train, 1), job.plan())
    steps.set_mode(training=True)
    for batch in (32, 128):
        assert found.total(batch) == pytest.approx(total(need(steps.train, job.train, batch)), rel=1e-3)
    assert found.total(64) == pytest.approx(total(need(steps.train, job.train, 64)), rel=0.05)
    assert found.weights == 4 * 431_080
    assert found.optimizer == 2 * found.weights  # Adam keeps two moments


def test_the_largest_batch_fills_what_is_free() -> None:
    memory = PlannedMemory(100, 200, 50, 10, free=1000, batch=8, examples=10_000)
    assert memory.largest_batch == (900 - 350) // 10
    assert memory.total(memory.largest_batch) <= 900 < memory.total(memory.largest_batch + 1)
    assert PlannedMemory(100, 200, 50, 10, 300, 8, 10_000).largest_batch == 0
    assert PlannedMemory(100, 200, 50, 10, None, 8, 77).largest_batch == 77


def test_augmented_images_differ_and_plain_ones_are_not_shown() -> None:
    images = preview_training(settings(augment="standard")).images
    assert images is not None
    assert images.shape == (4, 28, 28, 1)
    assert images.dtype == np.uint8
    assert len({image.tobytes() for image in images}) == 4
    assert preview_training(settings()).images is None


def test_image_files_are_not_packed_for_a_preview(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "1.png").write_bytes(b"")
    with pytest.raises(UserError, match="It is created when the training starts"):
        preview_training(settings(data=str(tmp_path / "photos")))


def test_previews_of_the_studio_are_made_once_and_overtaken_ones_are_dropped() -> None:
    pytest.importorskip("nicegui")
    from weft.studio.library.previews import TrainingPreviews

    made: list[dict[str, object]] = []

    class Counting(TrainingPreviews):
        async def _made(self, settings: dict[str, object]) -> str:  # type: ignore[override]
            made.append(settings)
            await asyncio.sleep(0.01)
            return str(settings["batch"])

    async def ask() -> None:
        previews, newest = Counting(), 3
        wanted = [previews.make(settings(batch=str(b)), lambda b=b: b in (1, newest)) for b in (1, 2, 3)]
        assert await asyncio.gather(*wanted) == ["1", None, "3"]
        assert await previews.make(settings(batch="3", name="another", epochs="7"), lambda: True) == "3"
        assert previews.known(settings(batch="3")) == "3"
        assert len(made) == 2

    asyncio.run(ask())
