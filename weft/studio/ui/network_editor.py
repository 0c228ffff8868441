"""The editor of a network's text: CodeMirror, which NiceGUI brings along, with completion, and with problems under their lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui.element import Element
from nicegui.elements.codemirror import CodeMirror  # registers CodeMirror, which network_editor.js imports

_ = CodeMirror


class NetworkEditor(Element, component="../assets/network_editor.js"):
    """A text that is edited. `on_change` is called with the text and its number when typing stops."""

    def __init__(self, text: str, vocabulary: Mapping[str, Any], on_change: Callable[[str, int], Any]) -> None:
        super().__init__()
        self._props |= {"text": text, "vocabulary": dict(vocabulary)}
        self.on("edited", lambda event: on_change(str(event.args["text"]), int(event.args["number"])))

    def show_problems(self, problems: Sequence[Mapping[str, Any]], number: int) -> None:
        """Mark the lines of problems, unless the text has changed since."""
        self.run_method("showProblems", list(problems), number)

    def set_text(self, text: str) -> None:
        """Replace the text, as one change that can be undone."""
        self.run_method("setText", text)
