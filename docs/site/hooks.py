"""What MkDocs needs to know about this repository: pages at its root, and links that leave docs/.

The Markdown is written for a forge, where a link may lead to any file of the repository. The site holds docs/ only. So
the documents at the root become pages of the site, and a link to another file of the repository becomes its path as text.
A link to a file that does not exist is left alone: MkDocs reports it, and `--strict` fails. Names of the reference that
modules have too lead to their definitions: see definitions.py.
"""

import os
import re
from pathlib import Path

from definitions import with_definitions
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files, config):
    for source, page in ROOT_PAGES.items():
        content = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    source = {page: source for source, page in ROOT_PAGES.items()}.get(page.file.src_uri)
    folder = ROOT if source else (ROOT / "docs" / page.file.src_uri).parent
    here = os.path.dirname(page.file.src_uri)
    return LINK.sub(lambda link: site_link(link, folder, here), with_definitions(markdown))


def site_link(link, folder, here):
    """The link as it is for a page in the folder `here` of the site, written in a file of `folder`."""
    target = link["target"]
    path = Path(os.path.normpath(folder / target))
    if re.match(r"[a-z]+:", target) or not path.exists() or not path.is_relative_to(ROOT):
        return link[0]
    name = path.relative_to(ROOT).as_posix()
    if name in ROOT_PAGES or name.startswith("docs/"):
        page = ROOT_PAGES.get(name, name.removeprefix("docs/"))
        return f"[{link['text']}]({os.path.relpath(page, here or '.')}{link['anchor'] or ''})"
    return link["text"] if name in link["text"] else f"{link['text']} (`{name}`)"
