"""Fills a studio with an example: drawn flowers as a dataset, trainings, a sweep, a cross-validation with its ensemble, a network of one's own, one that writes, predictions, accounts.

Used by scripts/studio_pictures.py. Everything is made or ships with weft: no download.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from weft.data import digits
from weft.studio import Quota, open_store

PASSWORD = "four random words here"
PEOPLE = {"anna": "admin", "ben": "member", "chen": "member", "dora": "viewer"}
# Petals, their length and width, their colour, the colour of the centre.
FLOWERS: dict[str, tuple[int, float, float, tuple[int, int, int], tuple[int, int, int]]] = {
    "daisy": (13, 0.95, 0.16, (240, 240, 235), (230, 180, 40)),
    "iris": (6, 0.9, 0.34, (96, 74, 182), (240, 200, 80)),
    "poppy": (5, 0.8, 0.52, (206, 52, 38), (40, 30, 36)),
    "rose": (9, 0.7, 0.44, (198, 66, 112), (150, 36, 78)),
    "sunflower": (18, 0.98, 0.14, (242, 182, 28), (86, 52, 24)),
}
SEARCHED = {
    "data": "digits", "model": "lenet,mlp", "rate": "log:1e-4..1e-1", "batch": "32,64,128", "dropout": "0..0.5", "epochs": 6, "trials": 24, "jobs": 2,
    "name": "rates",
}  # fmt: skip
NETWORK = """\
name: flower_cnn
input: [3, 64, 64]
classes: 5
layers:
  - conv: {out: 16, kernel: 5, stride: 2}
  - batch_norm
  - relu
  - repeat:
      times: 2
      layers:
        - residual:
            layers:
              - conv_norm: double
              - conv: same
            shortcut:
              - conv: {out: double, kernel: 1}
        - max_pool: 2
  - global_avg_pool
  - dropout: 0.2
  - linear: classes
"""


def draw_flowers(folder: Path, per_class: int = 84) -> None:
    """A folder of pictures for each class, with the faults that a data doctor should find."""
    rng = np.random.default_rng(7)
    for name in FLOWERS:
        (folder / name).mkdir(parents=True)
        count = per_class // 2 if name == "iris" else per_class
        for number in range(count):
            draw_flower(name, rng).save(folder / name / f"{name}-{number:03}.jpg", quality=88)
    for first, second in (("rose/rose-003", "rose/rose-copy"), ("daisy/daisy-010", "daisy/daisy-010-b")):
        shutil.copy(folder / f"{first}.jpg", folder / f"{second}.jpg")
    Image.open(folder / "poppy/poppy-012.jpg").resize((120, 90)).save(folder / "poppy/poppy-012-small.jpg", quality=60)
    draw_flower("poppy", rng).save(folder / "rose/rose-901.jpg")  # wrong labels
    draw_flower("daisy", rng).save(folder / "sunflower/sunflower-901.jpg")
    Image.new("RGB", (96, 96), (18, 18, 20)).save(folder / "iris/lens-cap.png")
    draw_flower("rose", rng).resize((9, 9)).save(folder / "rose/rose-tiny.png")
    (folder / "daisy/interrupted.jpg").write_bytes((folder / "daisy/daisy-000.jpg").read_bytes()[:700])


def draw_flower(name: str, rng: np.random.Generator, side: int = 112, across: int = 150) -> Image.Image:
    """A flower from above on a meadow. Colours and shapes vary so much that a network confuses some classes."""
    petals, length, width, own_colour, centre_colour = FLOWERS[name]
    petals = max(4, petals + int(rng.integers(-2, 3)))
    width *= rng.uniform(0.8, 1.3)
    other = FLOWERS[list(FLOWERS)[rng.integers(len(FLOWERS))]][3]
    mixed = rng.uniform(0, 0.5)
    petal_colour = [(1 - mixed) * a + mixed * b for a, b in zip(own_colour, other, strict=True)]
    base = np.array((70, 104, 58)) + rng.normal(0, 14, 3)
    coarse = rng.normal(0, 26, (14, 14, 1)) + base
    meadow = Image.fromarray(np.clip(coarse, 0, 255).astype(np.uint8)).resize(
        (across * 2, side * 2), Image.Resampling.BICUBIC
    )
    drawn = ImageDraw.Draw(meadow)
    x, y = across + rng.normal(0, 20), side + rng.normal(0, 14)
    radius, turn = side * rng.uniform(0.4, 0.8), rng.uniform(0, math.tau)
    shade = rng.normal(0, 18, 3)
    for i in range(petals):
        angle = turn + i * math.tau / petals
        colour = tuple(
            int(np.clip(c + d + rng.normal(0, 10), 0, 255)) for c, d in zip(petal_colour, shade, strict=True)
        )
        drawn.polygon(petal(x, y, angle, radius * length, radius * width), fill=colour)
    inner = radius * rng.uniform(0.2, 0.34)
    drawn.ellipse((x - inner, y - inner, x + inner, y + inner), fill=centre_colour)
    soft = meadow.filter(ImageFilter.GaussianBlur(float(rng.uniform(1.0, 3.6))))
    noisy = np.asarray(soft.resize((across, side), Image.Resampling.LANCZOS), np.float32) + rng.normal(
        0, 5, (side, across, 3)
    )
    return Image.fromarray(np.clip(noisy * rng.uniform(0.8, 1.12), 0, 255).astype(np.uint8))


def petal(x: float, y: float, angle: float, length: float, width: float) -> list[tuple[float, float]]:
    """The outline of a petal that begins at a point."""
    points = []
    for t in np.linspace(0, math.tau, 28):
        along, across = length * (1 - math.cos(t)) / 2, width * math.sin(t)
        points.append(
            (
                x + along * math.cos(angle) - across * math.sin(angle),
                y + along * math.sin(angle) + across * math.cos(angle),
            )
        )
    return points


def write_digits(folder: Path, count: int = 200) -> None:
    """Pictures of digits in a folder for each class."""
    images, labels = (np.asarray(part)[-count:] for part in digits())
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        target = folder / str(int(label))
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 255).astype(np.uint8)).save(target / f"{i:03}.png")


def write_text(file: Path, guides: Path) -> None:
    """The guides of weft as one text: a network learns to write like them."""
    texts = [path.read_text("utf-8") for path in sorted(guides.glob("*.md"))]
    prose = [line for text in texts for line in text.splitlines() if line and line[0].isalpha()]
    file.write_text("\n".join(prose), "utf-8")


def add_accounts(runs: Path) -> None:
    """People of all roles, a quota, a token."""
    store = open_store(runs)
    for name, role in PEOPLE.items():
        store.accounts.add(name, PASSWORD, role=role)
    store.accounts.set_quota("ben", Quota(gpu_jobs=1, disk_bytes=150 * 10**9))
    store.credentials.create_token("ben", "nightly training", role="member", days=90)
    store.credentials.create_token("anna", "dashboard", role="viewer", days=30)
    store.close()


def finding_id(finding: dict[str, Any]) -> str:
    """The name of a finding of the data doctor in decisions."""
    return f"{finding['check']}/" + "=".join(f"{split}:{row}" for split, row in finding["images"])


class ExampleStudio:
    """Fills a studio that runs, over REST as its pages do."""

    def __init__(self, address: str, runs: Path, say: Callable[[str], None]) -> None:
        token = (runs / ".studio" / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "X-Weft-Studio": "1"}
        self.web = httpx.Client(base_url=f"{address}/api/v1", headers=headers, timeout=120)
        self.folder, self.say, self.live = runs.parent, say, list[int]()

    def call(self, method: str, path: str, content: Any = None) -> Any:
        answer = self.web.request(method, path, json=content)
        if answer.is_error:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()

    def wait(self, *numbers: int, ended: tuple[str, ...] = ("done",)) -> None:
        """Wait until these jobs have ended well."""
        for number in numbers:
            while (job := self.call("GET", f"/jobs/{number}"))["state"] not in ("done", "stopped", "failed"):
                time.sleep(0.5)
            if job["state"] not in ended:
                raise RuntimeError(f"job {number}: {job['state']} {job.get('why')}")

    def train(self, **settings: Any) -> list[int]:
        return [job["number"] for job in self.call("POST", "/jobs", {"settings": settings})]

    def fill(self) -> None:
        """Everything that takes time."""
        self.say("dataset")
        self.dataset()
        self.say("network and trainings")
        self.call("PUT", "/designs/flower_cnn", {"text": NETWORK})
        flowers = str(self.folder / "datasets" / "flowers")
        first = self.train(data=flowers, model="flower_cnn", epochs=16, name="flowers-cnn")
        first += self.train(data=flowers, model="flower_cnn", epochs=16, augment="light", name="flowers-augmented")
        first += self.train(data="digits", model="lenet", epochs=12, name="lenet")
        first += self.train(data="digits", model="mlp", epochs=12, name="mlp")
        first += self.train(
            data="digits", model="lenet", epochs=5, rate="0.03,0.01,0.003,0.001", batch="32,128", name="sweep"
        )
        self.wait(*first)
        self.say("what runs show")
        for run in ("classify/flowers-cnn", "classify/lenet"):
            self.wait(self.call("POST", f"/runs/{run}/embedding", {"examples": 300})["number"])
        sweep = {
            "density": "0.6,0.4,0.25,0.15,0.08,0.04",
            "bits": 4,
            "epochs": 2,
            "steps": 2,
            "tolerance": 1,
            "name": "lenet-small",
        }
        self.wait(self.call("POST", "/runs/classify/lenet/compressions", sweep)["number"])
        for settings in ({"batch": 8}, {"batch": 1}):
            self.wait(self.call("POST", "/runs/classify/flowers-cnn/profiles", settings)["number"])
        self.call(
            "POST",
            "/runs/annotate",
            {"runs": ["classify/flowers-cnn", "classify/flowers-augmented"], "add_tags": ["flowers"]},
        )
        self.call("POST", "/runs/classify/flowers-cnn/exports", {"to": "onnx"})
        self.predictions()
        self.wait(self.call("POST", "/runs/classify/flowers-cnn/energy", {})["number"])
        self.say("a cross-validation and an ensemble")
        folds = {"folds": 5, "settings": {"data": "digits", "model": "mlp", "epochs": 8, "name": "digits-folds"}}
        self.wait(self.call("POST", "/folds", folds)["number"])
        self.wait(self.call("POST", "/ensembles", {"folds": "digits-folds", "name": "digits-together"})["number"])
        self.say("a text")
        self.wait(
            *self.train(
                data=str(self.folder / "guides.txt"),
                model="char_lstm",
                hidden=192,
                epochs=16,
                rate=0.004,
                name="guides",
            )
        )
        self.say("a sweep")
        self.wait(self.call("POST", "/sweeps", {"settings": SEARCHED})["number"])

    def dataset(self) -> None:
        """Flowers, examined by the doctor, and a second version without what it found."""
        values = {
            "kind": "folder",
            "source": "photos",
            "name": "flowers",
            "size": "64",
            "validation": "20",
            "test": "15",
        }
        self.wait(self.call("POST", "/datasets", values)["number"])
        doctor = "/datasets/flowers/versions/1/doctor"
        self.wait(self.call("POST", doctor, {})["number"])
        found = [one for check in self.call("GET", doctor)["report"]["results"] for one in check["findings"]]
        copies = [finding_id(one) for one in found if one["check"] in ("leaks", "duplicates")]
        self.call("PUT", f"{doctor}/decisions", dict.fromkeys(copies, "remove"))
        self.wait(self.call("POST", f"{doctor}/save")["number"])
        self.wait(self.call("POST", "/datasets/flowers/versions/2/doctor", {})["number"])

    def predictions(self) -> None:
        """Many images at once, with labels."""
        for network, path in (("classify/lenet", "handwriting"), ("classify/flowers-cnn", "photos")):
            found = self.call("POST", "/predictions", {"network": network, "path": str(self.folder / path)})
            if found["job"] is not None:
                self.wait(found["job"])

    def go_live(self) -> None:
        """One job fails, one runs, some wait, one is held."""
        gone = self.folder / "photos-2024"
        shutil.copytree(self.folder / "photos", gone)
        flowers = str(self.folder / "datasets" / "flowers")
        self.call("POST", "/queue/pause")
        failing = self.train(data=str(gone), model="lenet", epochs=5, size=32, name="photos-2024")
        shutil.rmtree(gone)
        self.live = self.train(data=flowers, model="flower_cnn", epochs=600, name="flowers-long", augment="standard")
        self.live += self.train(data="digits", model="lenet", epochs=20, name="lenet-20")
        self.live += self.train(data=flowers, model="lenet", epochs=10, name="flowers-lenet")
        self.live += self.train(data="digits", model="mlp", epochs=50, rate=0.003, name="mlp-slow")
        self.call("POST", f"/jobs/{self.live[-1]}/hold")
        self.call("POST", "/queue/resume")
        self.wait(*failing, ended=("failed",))
        while self.call("GET", f"/jobs/{self.live[0]}")["state"] != "running":
            time.sleep(0.5)
        time.sleep(25)  # some epochs

    def stop(self) -> None:
        """End what runs: trainings outlive the studio."""
        for number in reversed(self.live):
            if self.call("GET", f"/jobs/{number}")["state"] in ("waiting", "running"):
                self.call("POST", f"/jobs/{number}/stop")
        self.wait(*self.live, ended=("done", "stopped"))
