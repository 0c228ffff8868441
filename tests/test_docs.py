"""Runs the documentation: every Python block and every weft command of README.md and docs/ must work, every link lead somewhere."""

import re
import runpy
import shlex
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

import docs_runner
import weft

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = sorted(path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.glob("docs/**/*.md"))
PROJECT = ["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
DOCUMENTS = ["README.md", *PROJECT, *PAGES]
MAY_HAVE_NO_EXAMPLES = {"docs/design.md", "docs/studio/pages.md", *PROJECT}
SHELLS_THAT_WOULD_NOT_RUN = {"bash", "shell", "console", "zsh"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = REPOSITORY / name
    assert path.exists(), f"{name} is missing"
    document = docs_runner.read_document(path)
    complaints = docs_runner.complaints_about_blocks(document, needs_block=name not in MAY_HAVE_NO_EXAMPLES)
    complaints += complaints_about_shells(document)
    complaints += docs_runner.dead_links(document, REPOSITORY)
    assert not complaints, "\n" + "\n".join(complaints)

    # Examples may write files; those must not end up in the checkout, nor in the user's folder for data.
    folder = tmp_path / "page"
    folder.mkdir()
    monkeypatch.chdir(folder)
    set_seed()
    with weft.knobs.set(data=str(tmp_path / "data")):
        docs_runner.run_examples(with_commands(document))


def set_seed() -> None:
    """Give each document the same random numbers, whatever ran before it."""
    if hasattr(weft, "seed"):
        weft.seed(0)


def with_commands(document: docs_runner.Document) -> docs_runner.Document:
    """The document with its sh blocks as Python blocks, so that all of them run in the order of the text."""
    return replace(document, blocks=[as_python(b) if b.language == "sh" else b for b in document.blocks])


def as_python(block: docs_runner.Block) -> docs_runner.Block:
    """Each line `weft ...` as the call that it is, on the same line of the file; other lines do nothing."""
    return replace(block, language="python", code="\n".join(map(call_of, block.code.splitlines())) + "\n")


def call_of(line: str) -> str:
    words = shlex.split(line, comments=True) if line.startswith("weft ") else []
    return f'assert __import__("weft.cli").cli.main({words[1:]}) == 0, {line!r}' if words else ""


def complaints_about_shells(document: docs_runner.Document) -> list[str]:
    """Name blocks with commands that would silently not run."""
    return [
        f"{document.path}:{block.line - 1}: write ```sh, not ```{block.language}, so that it runs"
        for block in document.blocks
        if block.language in SHELLS_THAT_WOULD_NOT_RUN and re.search(r"^(\$ )?weft ", block.code, re.MULTILINE)
    ]


# From here on: the test of the runner, on small made-up documents.


def write_document(folder: Path, text: str) -> docs_runner.Document:
    path = folder / "page.md"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return docs_runner.read_document(path)


def test_blocks_share_one_namespace_in_order(tmp_path: Path) -> None:
    document = write_document(
        tmp_path,
        """\
        # Page
        ```python
        x = 2
        ```
        ```text
        not python
        ```
        - in a list:
          ```python
          >>> x = x + 1
          >>> [x,   'many words']
          [3, 'many ...']
          ```
        ~~~python
        assert x == 3
        ~~~
        ````markdown
        ```python
        this is only shown
        ```
        ````
        """,
    )
    assert [block.line for block in document.python_blocks()] == [3, 10, 15]
    docs_runner.run_examples(document)


def test_commands_run_in_the_order_of_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = write_document(
        tmp_path,
        """\
        ```python
        print("first")
        ```
        ```sh
        # weft nothing
        make coffee
        weft summary lenet size=28 channels=1 --json   # the second
        ```
        ```python
        print("third")
        ```
        """,
    )
    docs_runner.run_examples(with_commands(document))
    first, second, third = capsys.readouterr().out.splitlines()
    assert (first, third) == ("first", "third")
    assert '"parameters": 431080' in second


def test_failing_command_names_file_and_line(tmp_path: Path) -> None:
    document = write_document(tmp_path, "text\n\n```sh\nweft devices\nweft devises\n```\n")
    with pytest.raises(AssertionError, match="weft devises") as caught:
        docs_runner.run_examples(with_commands(document))
    last = caught.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(document.path), 5)


@pytest.mark.parametrize("language", ["bash", "console"])
def test_command_that_would_not_run_is_caught(tmp_path: Path, language: str) -> None:
    document = write_document(tmp_path, f"text\n```{language}\n$ weft devices\n```\n")
    (complaint,) = complaints_about_shells(document)
    assert "page.md:2: write ```sh" in complaint
    assert complaints_about_shells(write_document(tmp_path, "```bash\nmake demo\n```\n")) == []


def test_failing_code_names_file_and_line(tmp_path: Path) -> None:
    document = write_document(tmp_path, "text\n\n```python\nx = 1\nx / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        docs_runner.run_examples(document)
    last = caught.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(document.path), 5)


def test_wrong_output_names_file_and_line(tmp_path: Path) -> None:
    document = write_document(tmp_path, "text\n\n```python\n>>> x = 1\n>>> x\n2\n```\n")
    with pytest.raises(AssertionError, match=r'page\.md", line 5, in page\.md') as caught:
        docs_runner.run_examples(document)
    assert "Expected:\n    2\nGot:\n    1" in str(caught.value)


def test_block_left_open_is_caught(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="page.md:2: this block is never closed"):
        write_document(tmp_path, "text\n```python\nx = 1\n")


def test_document_without_examples_is_caught(tmp_path: Path) -> None:
    document = write_document(tmp_path, "only words\n")
    (complaint,) = docs_runner.complaints_about_blocks(document, needs_block=True)
    assert complaint.endswith("page.md: has no ```python block")
    assert docs_runner.complaints_about_blocks(document, needs_block=False) == []


@pytest.mark.parametrize("language", ["py", "pycon", "Python", "python3"])
def test_block_that_would_not_run_is_caught(tmp_path: Path, language: str) -> None:
    document = write_document(tmp_path, f"text\n```{language}\nx = 1\n```\n")
    (complaint,) = docs_runner.complaints_about_blocks(document, needs_block=False)
    assert "page.md:2: write ```python" in complaint


@pytest.mark.parametrize(
    "target",
    ["other.md", "./sub", "/other.md", "other.md#the-2nd-part", "#page", "https://x.org/y", "mailto:a@b.c"],
)
def test_live_link_passes(tmp_path: Path, target: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "other.md").write_text("# Other\n\n## The 2nd part!\n")
    text = f"# Page\n\nsee [it]({target}), `[not](a-link)`\n\n[label]: {target}\n"
    document = write_document(tmp_path, text)
    assert docs_runner.dead_links(document, tmp_path) == []


@pytest.mark.parametrize("text", ["[it]({})", '[it]({} "title")', "![picture]({})", "[label]: {}", '<img src="{}">'])
@pytest.mark.parametrize("target", ["gone.md", "../gone.md", "/gone.md", "#gone", "page.md#gone"])
def test_dead_link_is_caught(tmp_path: Path, text: str, target: str) -> None:
    document = write_document(tmp_path, "# Page\n\n" + text.format(target) + "\n")
    (complaint,) = docs_runner.dead_links(document, tmp_path)
    assert complaint.endswith(f"page.md:3: dead link {target}")


def test_pictures_are_current() -> None:
    folder = REPOSITORY / "docs" / "pictures"
    drawn = runpy.run_path(str(folder / "draw.py"))["PICTURES"]
    assert {path.stem for path in folder.glob("*.svg")} == set(drawn)
    for name, graph in drawn.items():
        stale = without_titles((folder / f"{name}.svg").read_text()) != without_titles(graph().svg())
        assert not stale, f"{name}.svg is out of date: run docs/pictures/draw.py"


def without_titles(svg: str) -> str:
    """A title names the line that made a node first, and an equal node may still live from elsewhere."""
    return re.sub(r"<title>.*?</title>", "", svg, flags=re.DOTALL)
