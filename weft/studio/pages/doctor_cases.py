"""What the page of the data doctor says about checks, and a finding as it shows it."""

from __future__ import annotations

from ...data.doctor.decisions import WORDS
from ...data.doctor.report import DoctorFinding
from ...records import dataclass

ABOUT = {
    "leaks": "Images that are in train as well make results on held-out images look better than they are.",
    "duplicates": "Copies teach nothing new, and count twice in every measurement.",
    "near-duplicates": "Almost the same image: resized, brightened, slightly cropped or mirrored.",
    "quality": "Blank images, images with hardly any contrast or detail, and files that could not be read.",
    "balance": "Networks learn rare classes badly. Add images of them, or remove some of the others.",
    "outliers": "Images unlike all others: often something else altogether, or damaged.",
    "labels": "A small network was trained without each of these images, and takes them for another class.",
}
ORDER = ("leaks", "labels", "duplicates", "balance", "near-duplicates", "outliers", "quality")
TO_COME = {
    "leaks": ("Leak between splits", "Images that are in two splits"),
    "labels": ("Likely wrong labels", "By a network trained without the image"),
    "duplicates": ("Duplicates", "The same pixels twice"),
    "balance": ("Imbalance", "Classes with few images"),
    "near-duplicates": ("Near duplicates", "Resized, brightened, cropped, mirrored"),
    "outliers": ("Outliers", "Unlike all other images"),
    "quality": ("Broken or tiny images", "Blank, without contrast or detail"),
}
NOUNS = {"leaks": "Pair", "near-duplicates": "Pair", "duplicates": "Group"}
SPLIT_WORDS = {"train": "train", "validation": "val", "test": "test"}


@dataclass(frozen=True)
class Case:
    """A finding as it is shown: its number in the report, its images, and what was decided."""

    number: int
    finding: DoctorFinding
    decision: str

    @property
    def id(self) -> str:
        return self.finding.id

    @property
    def word(self) -> str:
        """What was decided, in a word."""
        return WORDS.get(self.decision.partition(":")[0], "")

    @property
    def new_label(self) -> str:
        """The class that was decided on, if that is another than the suggested one."""
        return self.decision.partition(":")[2]

    @property
    def label(self) -> str:
        labels = self.finding.facts.get("labels") or [""]
        return str(labels[0])
