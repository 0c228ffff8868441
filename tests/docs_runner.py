"""Reads Markdown files: runs their Python examples and finds their dead links.

All examples of a file share one namespace and run in the order of the text, as a reader would type them.
"""

import doctest
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

DOCTEST_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NAMES_THAT_WOULD_NOT_RUN = {"py", "py3", "python3", "pycon", "ipython"}

FENCE = re.compile(r"^\s*(?P<marks>`{3,}|~{3,})(?P<info>.*)$")
DOCTEST_LINE = re.compile(r"^\s*>>>", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
INLINE_CODE = re.compile(r"(`+).*?\1")
LINKS = [
    re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)"),  # [text](target "title")
    re.compile(r"^\s*\[[^\]]+\]:\s*<?([^\s>]+)"),  # [label]: target
    re.compile(r"\b(?:href|src)=[\"']([^\"']+)[\"']"),  # <img src="target">
]
OUTSIDE_LINK = re.compile(r"^([a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its code, and the line of the file where the code starts."""

    language: str
    code: str
    line: int


@dataclass(frozen=True)
class Document:
    """A Markdown file split into its fenced blocks and its numbered lines of text."""

    path: Path
    blocks: list[Block]
    text: list[tuple[int, str]]

    def python_blocks(self) -> list[Block]:
        return [block for block in self.blocks if block.language == "python"]


def read_document(path: Path) -> Document:
    blocks: list[Block] = []
    text: list[tuple[int, str]] = []
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    for number, line in lines:
        fence = FENCE.match(line)
        if fence is None:
            text.append((number, line))
            continue
        code = textwrap.dedent("\n".join(lines_until_fence_closes(path, number, fence["marks"], lines)))
        language = fence["info"].strip().partition(" ")[0]
        blocks.append(Block(language, code + "\n", number + 1))
    return Document(path, blocks, text)


def lines_until_fence_closes(path: Path, opened_at: int, marks: str, lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    for _, line in lines:
        end = line.strip()
        if end.startswith(marks) and not end.strip(marks[0]):
            return
        yield line
    raise AssertionError(f"{path}:{opened_at}: this block is never closed")


def complaints_about_blocks(document: Document, needs_block: bool) -> list[str]:
    """Name what would make examples silently not run."""
    complaints = [
        f"{document.path}:{block.line - 1}: write ```python, not ```{block.language}, so that it runs"
        for block in document.blocks
        if block.language != "python" and block.language.lower() in {"python", *NAMES_THAT_WOULD_NOT_RUN}
    ]
    if needs_block and not document.python_blocks():
        complaints.append(f"{document.path}: has no ```python block")
    return complaints


def run_examples(document: Document) -> None:
    """Run all Python blocks in order; the first one that fails ends the run with its error."""
    # A real module, because dataclasses and pickle look up a class by the name of its module.
    module = types.ModuleType("documentation_examples")
    module.__file__ = str(document.path)
    sys.modules[module.__name__] = module
    try:
        for block in document.python_blocks():
            run_block(document.path, block, module.__dict__)
    finally:
        del sys.modules[module.__name__]


def run_block(path: Path, block: Block, namespace: dict[str, object]) -> None:
    if DOCTEST_LINE.search(block.code):
        run_as_doctest(path, block, namespace)
    else:
        # Empty lines in front make the line numbers of a traceback those of the file.
        source = "\n" * (block.line - 1) + block.code
        exec(compile(source, str(path), "exec", dont_inherit=True), namespace)


def run_as_doctest(path: Path, block: Block, namespace: dict[str, object]) -> None:
    test = doctest.DocTestParser().get_doctest(block.code, {}, path.name, str(path), block.line - 1)
    # Set afterwards: DocTest copies the namespace it is given, and later blocks need these names.
    test.globs = namespace
    report: list[str] = []
    doctest.DocTestRunner(optionflags=DOCTEST_FLAGS).run(test, out=report.append, clear_globs=False)
    assert not report, "\n" + "".join(report)


def dead_links(document: Document, root: Path) -> list[str]:
    return [
        f"{document.path}:{line}: dead link {target}"
        for line, target in links_in(document)
        if not OUTSIDE_LINK.match(target) and not link_leads_somewhere(document.path, target, root)
    ]


def links_in(document: Document) -> Iterator[tuple[int, str]]:
    for number, line in document.text:
        without_code = INLINE_CODE.sub("`code`", line)
        for pattern in LINKS:
            for target in pattern.findall(without_code):
                yield number, target


def link_leads_somewhere(source: Path, target: str, root: Path) -> bool:
    name, _, anchor = unquote(target).partition("#")
    if not name:
        path = source
    elif name.startswith("/"):
        path = root / name.lstrip("/")
    else:
        path = source.parent / name
    if not path.exists():
        return False
    return not anchor or path.suffix != ".md" or anchor in anchors_of(read_document(path))


def anchors_of(document: Document) -> set[str]:
    """The anchors a code host gives to headings: lower case, dashes for spaces, a number when repeated."""
    anchors: set[str] = set()
    for _, line in document.text:
        heading = HEADING.match(line)
        if heading is not None:
            anchor = re.sub(r"[^\w\- ]", "", heading[1].lower()).replace(" ", "-")
            repeats = (f"{anchor}-{count}" for count in range(1, len(anchors) + 2))
            anchors.add(anchor if anchor not in anchors else next(r for r in repeats if r not in anchors))
    return anchors
