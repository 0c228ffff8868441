"""The catalogue of datasets that weft knows by name: download addresses, files, checksums and readers."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..errors import RunError, UserError
from ..io.files import cannot_write, replace_file
from ..knobs import knobs
from ..records import dataclass
from .cifar import CIFAR10_FILES, CIFAR100_FILES, from_cifar
from .dataset import Arrays, Splits
from .digits import digit_arrays
from .download import Report, checksum, fetch
from .idx import from_idx
from .split_plan import split_class
from .statistics import Statistics


@dataclass(frozen=True)
class CatalogueEntry:
    """One dataset: its addresses, file checksums, classes, and the statistics of its training images."""

    addresses: tuple[str, ...]
    files: dict[str, str]  # name -> SHA-256
    read: Callable[[Path, str, CatalogueEntry], Splits]
    statistics: Statistics
    classes: tuple[str, ...] = ()


def known(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    from_: str | os.PathLike[str] | None = None,
    report: Report | None = None,
) -> Splits:
    """Load a dataset by name: digits (built in), mnist, fashion-mnist, cifar10 or cifar100.

    It is downloaded once to `folder` (default: the setting `data`). `from_` reads the original files, compressed or
    not, from another folder and needs no network.

    >>> train, _, test = known("digits")
    >>> train, len(test)
    (<digits: 1438 examples of (1, 8, 8), 10 classes>, 359)
    """
    if name == "digits":
        return _digits()
    if name not in CATALOGUE:
        raise UserError("known", f"the name must be one of {', '.join(known_names())}, got {name!r}.")
    entry = CATALOGUE[name]
    if from_ is not None:
        directory = Path(from_)
        if not directory.is_dir():
            raise UserError("known", f"{directory} is not a folder with the files of {name}.")
        return entry.read(directory, name, entry)
    directory = (Path(folder) if folder is not None else data_folder()) / name
    _download(name, directory, report)
    return entry.read(directory, name, entry)


def known_names() -> tuple[str, ...]:
    """The names that `known` accepts."""
    return ("digits", *CATALOGUE)


def is_available(name: str) -> bool:
    """Whether a known dataset can be opened without network."""
    return name == "digits" or all(_find_files(data_folder() / name, name, file) for file in CATALOGUE[name].files)


def fetch_known(name: str, from_: str | os.PathLike[str] | None = None, report: Report | None = None) -> Path:
    """Put the files of a dataset into the data folder: download them, or copy them from the folder `from_`.

    Archives must have the checksum of the originals; files that are already unpacked must be readable.
    """
    directory = data_folder() / name
    if from_ is None:
        _download(name, directory, report)
        return directory
    source, files = Path(from_), CATALOGUE[name].files
    if not source.is_dir():
        raise UserError("known", f"{source} is not a folder with the files of {name}.")
    found = {file: _find_files(source, name, file) for file in files}
    for file, paths in found.items():
        if paths == [source / file] and checksum(source / file) != files[file]:
            raise RunError(
                "known", f"{source / file} is not the original of {name}: its checksum is wrong. Get it again."
            )
    if any(paths != [source / file] for file, paths in found.items()):
        CATALOGUE[name].read(source, name, CATALOGUE[name])  # reports missing or damaged files before copying
    check_writable(directory)
    _copy([path for paths in found.values() for path in paths], source, directory, report)
    return directory


def _download(name: str, directory: Path, report: Report | None) -> None:
    """Download the files that are missing in every accepted form."""
    entry = CATALOGUE[name]
    missing = {file: sha256 for file, sha256 in entry.files.items() if not _find_files(directory, name, file)}
    if missing:
        check_writable(directory)
    for file, sha256 in missing.items():
        fetch([address + file for address in entry.addresses], directory / file, sha256, report)


def _copy(paths: list[Path], source: Path, directory: Path, report: Report | None) -> None:
    done, total = 0, sum(path.stat().st_size for path in paths)
    for path in paths:
        target = directory / path.relative_to(source)
        part = target.with_name(target.name + ".part")
        try:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, part)
            os.replace(part, target)
        except OSError as error:
            raise RunError("known", f"{path} could not be copied to {directory}: {error.strerror or error}.") from error
        done += target.stat().st_size
        if report is not None:
            report(done, total)


def _find_files(directory: Path, name: str, file: str) -> list[Path]:
    """The archive, or else the files unpacked from it; an empty list if some are missing."""
    forms = [[directory / file]]
    if CATALOGUE[name].read is _read_cifar_files:
        train, test, names = CIFAR10_FILES if name == "cifar10" else CIFAR100_FILES
        for folder in (directory / _ARCHIVE_FOLDERS[name], directory):
            optional = [folder / names] if (folder / names).is_file() else []
            forms.append([folder / each for each in (*train, *test)] + optional)
    else:
        forms += [[directory / each] for each in _spellings(file.removesuffix(".gz"))]
    return next((paths for paths in forms if all(path.is_file() for path in paths)), [])


def data_folder() -> Path:
    """The folder for datasets: the setting `data`, or weft in the user's data folder (XDG_DATA_HOME)."""
    if knobs.data:
        return Path(knobs.data).expanduser()
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "weft"


def check_writable(folder: Path) -> None:
    """Create a data folder, and fail early if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RunError(
            "data",
            f"{folder} cannot be written: {error.strerror or error}. Set WEFT_DATA to a writable folder.",
        ) from error


def _digits() -> Splits:
    images, labels = digit_arrays()
    parts: list[np.ndarray] = [np.zeros(0, np.int64)] * 2
    for label in range(10):
        order = np.random.default_rng([0, label]).permutation(np.flatnonzero(labels == label))
        shares = split_class(order, {"test": 0.2})
        parts = [np.concatenate([part, shares[split]]) for part, split in zip(parts, ("train", "test"), strict=True)]
    train, test = (np.sort(part) for part in parts)
    pixels = images[train].astype(np.float64)
    statistics = Statistics((float(pixels.mean()),), (float(pixels.std()),))
    train_set, test_set = (Arrays(images[i][:, None], labels[i], None, "digits", statistics) for i in (train, test))
    return Splits(train_set, None, test_set)


def read_idx_files(directory: Path, name: str, entry: CatalogueEntry | None = None) -> Splits:
    """Read the four files of MNIST, or of a dataset in the same format, whose classes are then inferred from labels."""
    parts = []
    for prefix in ("train", "t10k"):
        files = [_find_file(directory, name, f"{prefix}-{what}") for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]
        parts.append(from_idx(files[0], files[1], entry.classes if entry else None))
    classes = max((part.classes for part in parts), key=len)
    statistics = entry.statistics if entry else None
    train, test = (Arrays(part.x, part.labels, classes, name, statistics) for part in parts)
    return Splits(train, None, test)


def _find_file(directory: Path, name: str, stem: str) -> Path:
    """Find a file compressed or not, also under the common spelling with a dot before idx."""
    names = _spellings(stem)
    found = next((directory / file for file in names if (directory / file).is_file()), None)
    if found is None:
        raise UserError("known", f"{directory} lacks {names[0]} (or {names[1]}) of {name}.")
    return found


def _spellings(stem: str) -> list[str]:
    return [stem + ".gz", stem, stem.replace("-idx", ".idx"), stem.replace("-idx", ".idx") + ".gz"]


def _read_cifar_files(directory: Path, name: str, entry: CatalogueEntry) -> Splits:
    """Read CIFAR; its archive is unpacked once, next to itself."""
    train, test, names = CIFAR10_FILES if name == "cifar10" else CIFAR100_FILES
    wanted = (*train, *test, names)
    (archive,) = entry.files
    inner = directory / _ARCHIVE_FOLDERS[name]
    if not (directory / train[0]).exists() and not (inner / train[0]).exists():
        if not (directory / archive).is_file():
            raise UserError("known", f"{directory} lacks {archive} (or the files in it) of {name}.")
        _unpack(directory / archive, inner, wanted)
    return from_cifar(directory if (directory / train[0]).exists() else inner, entry.statistics, name)


def _unpack(archive: Path, folder: Path, wanted: tuple[str, ...]) -> None:
    """Extract the wanted files by base name; the archive's own paths are ignored, so it cannot write elsewhere."""
    try:
        files = _read_archive(archive, wanted)
    except OSError as error:
        if error.errno is not None:
            raise RunError("known", f"{archive} cannot be read: {error.strerror or error}.") from error
        raise RunError("known", f"{archive} is damaged: {error}. Delete it and get it again.") from None
    except Exception as error:  # tarfile and zlib raise many types of errors on damaged files
        problem = f"{type(error).__name__}: {error}"
        raise RunError("known", f"{archive} is damaged: {problem}. Delete it and get it again.") from None
    missing = sorted(set(wanted) - set(files))
    if missing:
        raise RunError("known", f"{archive} lacks {', '.join(missing)}.")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise cannot_write("known", folder, error) from error
    for file, content in files.items():
        replace_file(folder / file, [content], "known")


def _read_archive(archive: Path, wanted: tuple[str, ...]) -> dict[str, bytes]:
    """Read the wanted files of an archive. It is read to the end, so that its checksum is verified."""
    found = {}
    with tarfile.open(archive) as content:
        for member in content:
            file = os.path.basename(member.name)
            data = content.extractfile(member) if file in wanted and member.isfile() else None
            if data is not None:
                found[file] = data.read()
        while content.fileobj is not None and content.fileobj.read(1 << 20):
            pass
    return found


_ARCHIVE_FOLDERS = {
    "cifar10": "cifar-10-batches-bin",
    "cifar100": "cifar-100-binary",
}  # the folder inside each archive
_FASHION_CLASSES = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)

CATALOGUE = {
    "mnist": CatalogueEntry(
        addresses=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        files={
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
        read=read_idx_files,
        statistics=Statistics((0.1307,), (0.3081,)),
        classes=tuple("0123456789"),
    ),
    "fashion-mnist": CatalogueEntry(
        addresses=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        files={
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
        read=read_idx_files,
        statistics=Statistics((0.2860,), (0.3530,)),
        classes=_FASHION_CLASSES,
    ),
    "cifar10": CatalogueEntry(
        addresses=("https://www.cs.toronto.edu/~kriz/",),
        files={"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
        read=_read_cifar_files,
        statistics=Statistics((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ),
    "cifar100": CatalogueEntry(
        addresses=("https://www.cs.toronto.edu/~kriz/",),
        files={"cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"},
        read=_read_cifar_files,
        statistics=Statistics((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    ),
}
