"""The verb `formats`: number formats, and what they do to a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..formats import page
from ..formats.survey import FormatSurvey, accuracy_rows, noise_text
from ..formats.table import LEGEND, TITLES, row_cells
from ..formats.table import table as format_table
from ..io.files import replace_file
from ..jobs.events import Event
from ..jobs.formats import SURVEY, SurveyedNetwork, survey_formats
from ..jobs.schema import Setting, flag
from .arguments import Words, read
from .display import Display
from .table import as_json, table

KNOWN = {
    **SURVEY,
    "html": Setting(str, None, "write a page with pictures to this file"),
    "json": Setting(flag, False, "print JSON, for programs"),
}


def formats(words: Sequence[str]) -> None:
    """Compare number formats and their effect on a network: weft formats, weft formats RUN html=formats.html.

    Alone it prints range, precision, energy, area and hardware of formats; formats=q3.12,int8 names others. With a run, or with data= and a
    saved program or a network by name, it measures each tensor on held-out examples: overflow, values that become 0, and the ratio of
    signal to rounding noise; then it runs the network with its weights rounded, and with its activations rounded too.
    """
    given = read("formats", words, KNOWN, 1)
    if not given.plain:
        _print_table(given)
        return
    with Display() as display:

        def show(event: Event) -> None:
            if event.type == "activity":
                display.activity(event["text"])

        network, found = survey_formats(given.plain[0], given.settings, show)
    if given["html"] is not None:
        out = Path(given["html"])
        subtitle = f"{found.examples:,} {network.split} examples"
        replace_file(out, [page.survey_page(network.title, found, subtitle).encode()], "formats")
    if given["json"]:
        told = {"network": network.title, "split": network.split, **found.to_json()}
        print(as_json(told))
        return
    _print_survey(network, found)
    if given["html"] is not None:
        print(f"page: {given['html']}")


def _print_table(given: Words) -> None:
    unused = [name for name in given.given if name not in ("formats", "json")]
    if unused:
        raise UserError("weft formats", f"a run or a network is required for {', '.join(unused)}, got none.")
    rows = format_table(*(given["formats"] if "formats" in given.given else ()))
    if given["json"]:
        print(as_json(rows.to_json()))
        return
    print(table(TITLES, [row_cells(row) for row in rows], left=("format", "here")))
    print(f"\n{LEGEND}")


def _print_survey(network: SurveyedNetwork, found: FormatSurvey) -> None:
    names = [one.format for one in found.accuracies]
    reference = "" if found.float_accuracy is None else f", accuracy {100 * found.float_accuracy:.2f} % in float32"
    print(f"{network.title}: {found.examples:,} {network.split} examples{reference}\n")
    rows = [[one.path, *(noise_text(one.formats.get(name)) for name in names)] for one in found.tensors]
    print(table(["SNR in dB", *names], rows, left=("SNR in dB",)))
    print("! overflow, 0 values that become 0, above 0.1 % of the values\n")
    print(table(["network", *names], [[title, *texts] for title, texts in accuracy_rows(found)], left=("network",)))
    for note in found.notes:
        print(f"\n{note}")
