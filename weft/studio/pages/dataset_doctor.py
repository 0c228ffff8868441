"""The data doctor of a dataset: start it, look at what it found, decide case by case, save the decisions as a new version."""

from __future__ import annotations

import asyncio
import json

from fastapi import HTTPException
from nicegui import background_tasks, ui

from ...data.dataset_folder import is_dataset_folder
from ...data.doctor.decisions import KEEP, MOVE, RELABEL, REMOVE, actions_of
from ...data.doctor.examine import CHECKS
from ...data.doctor.report import CheckResult
from ...errors import UserError
from ..library.doctor import DoctorView, examination_title, names_of, read_view, report_stamp, version_folder
from ..library.feed import Snapshot
from ..ui.context import Studio
from ..ui.fragment import Fragment, fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render
from .doctor_cases import ABOUT, NOUNS, ORDER, SPLIT_WORDS, TO_COME, Case

PAGE, PAIRS, PREVIEW = 24, 6, 6  # cases that are shown at first
RUNS = 50  # that can be chosen
SMALL = 64  # pixels; smaller images are shown as they are


def add(studio: Studio) -> None:
    """Register the page."""

    @studio_page("/datasets/{name}/doctor")
    async def doctor(name: str, version: str = "") -> None:
        try:
            folder = await asyncio.to_thread(version_folder, studio.config.dataset_folder, name, version)
        except UserError as error:
            raise HTTPException(404, error.message) from None
        page = DoctorPage(studio, await asyncio.to_thread(read_view, studio.queue, name, folder))
        base = studio.config.prefix
        ui.add_head_html(f'<link rel="stylesheet" href="{base}/assets/doctor.css">')
        ui.add_head_html(f'<script src="{base}/assets/doctor.js" defer></script>')
        header = (f"doctor header {id(page)}", lambda snapshot: page.header())
        with frame(studio, f"Data doctor of {name}", "datasets", live_header=header):
            fragment("doctor_tabs.html", base=base, view=page.view)
            page.show()


class DoctorPage:
    """One open page: which check and case it shows, and its parts."""

    def __init__(self, studio: Studio, view: DoctorView) -> None:
        self.studio, self.view = studio, view
        self.check, self.place, self.filter, self.least, self.most = "", 0, "all", 0.0, PAIRS
        self.undo: list[str] = []
        self._stamp = report_stamp(view.folder)
        self._choose_first()

    # --- what is shown --------------------------------------------------------------------------------------------------

    @property
    def result(self) -> CheckResult | None:
        return None if self.view.report is None else self.view.report.result(self.check)

    def cases(self, check: str | None = None) -> list[Case]:
        """The cases of a check that are sure enough."""
        result = self.view.report.result(check or self.check) if self.view.report else None
        found = [
            Case(number, one, self.view.decisions.of(one))
            for number, one in enumerate(result.findings if result else ())
        ]
        return [one for one in found if one.finding.score is None or one.finding.score >= self.least or check]

    def shown(self) -> list[Case]:
        """The cases that pass the filter."""
        return [one for one in self.cases() if self.filter == "all" or bool(one.decision) == (self.filter == "decided")]

    @property
    def api(self) -> str:
        return f"/datasets/{self.view.name}/versions/{self.view.number}/doctor"

    def show(self) -> None:
        """Add the parts to the page."""
        on = {
            "check": self._pick, "case": self._go, "filter": self._set_filter, "least": self._set_least, "more": self._show_more,
            "step": self._step, "decided": self._decided,
        }  # fmt: skip
        with ui.element("div").classes("doctor sect").props(f'data-doctor="{self.api}"'):
            with ui.element("div"):
                self.list = Fragment(self._list(), on=on)
            with ui.element("div").classes("doctor-main"):
                self.main = Fragment(self._main(), on=on)
        ui.context.client.on_delete(self.studio.feed.subscribe(self._look))

    def header(self) -> str:
        changes = self.view.report and self.view.decisions.changes(self.view.report)
        return render(
            "doctor_header.html", view=self.view, api=self.api, changes=changes, base=self.studio.config.prefix,
            summary=changes.summary() if changes else "",
        )  # fmt: skip

    def _list(self) -> str:
        results = [self.view.report.result(name) for name in ORDER] if self.view.report else []
        return render(
            "doctor_list.html", view=self.view, api=self.api, base=self.studio.config.prefix, check=self.check, results=[one for one in results if one is not None],
            to_come=[TO_COME[n] for n in ORDER if self.view.report is None or self.view.report.result(n) is None],
        )  # fmt: skip

    def _main(self) -> str:
        if self.view.report is None or (self.view.job is not None and self.view.job.is_active and not self.result):
            return render("doctor_start.html", view=self.view, api=self.api, checks=len(CHECKS))
        result, shown = self.result, self.shown()
        if result is None:
            return ""
        self.place = min(self.place, max(0, len(shown) - 1))
        if self.place >= self.most:  # the case under review is always among those shown
            self.most = self.place + PAGE
        every = self.cases()
        case = shown[self.place] if shown else None
        following = self._preview()
        return render(
            "doctor_main.html", page=self, result=result, about=ABOUT[self.check], case=case, shown=shown, cases=every,
            open=[one for one in every if not one.decision], noun=NOUNS.get(self.check, "Image"), splits=SPLIT_WORDS,
            names=names_of(self.view.folder, case.finding) if case else [], actions=self._actions(case), address=self._address,
            difference=self._difference(case), tally=self._tally(every), preview=following, lowest=self._lowest(result),
            bulk=self._bulk(every), runs=self._runs(), features=self._features(), json=json.dumps, base=self.studio.config.prefix, pixelated=self._is_small(),
        )  # fmt: skip

    def _actions(self, case: Case | None) -> list[tuple[str, str, str, str]]:
        """Key, title, icon and decision of each button."""
        if case is None:
            return []
        finding, images = case.finding, case.finding.images
        from_split = SPLIT_WORDS[images[-1][0]] if images else ""
        titles = {
            REMOVE: ("R", f"Remove from {from_split}" if self.check == "leaks" else "Remove", "bin"),
            MOVE: ("M", f"Move to {SPLIT_WORDS[images[0][0]]}" if images else "Move", ""),
            RELABEL: ("L", f"Relabel as {finding.facts.get('suggested')}", "tag"),
            KEEP: ("K", f"Keep {case.label}" if self.check == "labels" else "Keep", ""),
        }
        return [(*titles[name], name) for name in actions_of(finding)]

    def _bulk(self, cases: list[Case]) -> tuple[str, dict[str, str]] | None:
        """The button that decides all open cases as the doctor suggests."""
        first = {"labels": (RELABEL, "Relabel all open")}.get(self.check, (REMOVE, "Remove all open"))
        chosen = {one.id: first[0] for one in cases if not one.decision and one.finding.suggested}
        return (first[1], chosen) if chosen else None

    def _runs(self) -> list[str]:
        """The runs on images whose networks could tell images apart."""
        return [row.id for row in self.studio.index.rows() if row.id.startswith("classify/") and row.epochs][:RUNS]

    def _features(self) -> str:
        """The run whose network did, in the report that is shown."""
        report = self.view.report
        named = report.settings.get("features") if report else None
        return "" if named is None else str(named).removeprefix(f"{self.studio.index.root}/")

    def _preview(self) -> tuple[CheckResult, list[Case]] | None:
        """A few cases of wrong labels, while another check is shown."""
        result = self.view.report.result("labels") if self.view.report else None
        if self.check == "labels" or result is None or not result.findings:
            return None
        found = [one for one in self.cases("labels") if not one.decision][:PREVIEW]
        return (result, found) if found else None

    def _address(self, place: tuple[str, int]) -> str:
        digest = self.view.about["digest"][:8]
        return f"{self.studio.config.prefix}/api/v1{self.api}/images/{place[0]}/{place[1]}.png?{digest}"

    def _difference(self, case: Case | None) -> str:
        if case is None or len(case.finding.images) != 2 or self.check not in ("leaks", "near-duplicates"):
            return ""
        return f"{self.studio.config.prefix}/api/v1{self.api}/differences/{self.check}/{case.number}.png"

    def _tally(self, cases: list[Case]) -> str:
        words = {REMOVE: "removed", MOVE: "moved", RELABEL: "relabelled", KEEP: "kept"}
        parts = [
            f"{count} {word}"
            for action, word in words.items()
            if (count := sum(one.decision.partition(":")[0] == action for one in cases))
        ]
        return ", ".join([*parts, f"{sum(not one.decision for one in cases)} open"])

    def _lowest(self, result: CheckResult) -> int | None:
        """The lowest score in percent, where the scores differ."""
        scores = [one.score for one in result.findings if one.score is not None]
        return int(100 * min(scores)) if scores and min(scores) < 0.999 * max(scores) else None

    def _is_small(self) -> bool:
        return bool(max(self.view.about["shape"][1:]) <= SMALL)

    # --- what people do -------------------------------------------------------------------------------------------------

    def _pick(self, check: str) -> None:
        self.check, self.filter, self.least = check, "all", 0.0
        self.most = PAIRS if check in NOUNS else PAGE
        self._to_first_open()
        self._refresh()

    def _go(self, number: str) -> None:
        self.place = next((i for i, one in enumerate(self.shown()) if str(one.number) == number), self.place)
        self._refresh()

    def _step(self, by: str) -> None:
        self.place = max(0, min(len(self.shown()) - 1, self.place + int(by)))
        self._refresh()

    def _set_filter(self, name: str) -> None:
        self.filter, self.place = name, 0
        self._refresh()

    def _set_least(self, percent: str) -> None:
        self.least, self.place = float(percent) / 100, 0
        self._refresh()

    def _show_more(self, value: str) -> None:
        self.most += 4 * PAGE
        self._refresh()

    def _decided(self, value: str) -> None:
        """The browser has sent decisions to the API: read them, and go on to the next open case."""
        given: dict[str, str | None] = json.loads(value)
        taken_back = [name for name, action in given.items() if action is None]
        self.undo = [name for name in self.undo if name not in given] + [n for n in given if n not in taken_back]
        background_tasks.create(self._reload(None if taken_back else set(given)))

    # --- what changes meanwhile -----------------------------------------------------------------------------------------

    def _look(self, snapshot: Snapshot) -> None:
        """Follow the job; read the report again when it was written, and the versions when there is a new one."""
        view, title = self.view, examination_title(self.view.name, self.view.folder)
        active = any(one.name == title and one.state in ("waiting", "running") for one in snapshot.activities)
        following = view.folder.with_name(f"v{view.next_number}")
        if (
            active
            or (view.job is not None and view.job.is_active)
            or report_stamp(view.folder) != self._stamp
            or is_dataset_folder(following)
        ):
            background_tasks.create(self._reload())

    async def _reload(self, decided: set[str] | None = None) -> None:
        before = self.shown()
        self._stamp = report_stamp(self.view.folder)
        self.view = await asyncio.to_thread(read_view, self.studio.queue, self.view.name, self.view.folder)
        if not self.check:
            self._choose_first()
        if decided:
            self._go_on(before, decided)
        self._refresh()

    def _go_on(self, before: list[Case], decided: set[str]) -> None:
        """The next case that is open, from the one that was shown."""
        current = before[self.place].id if self.place < len(before) else ""
        if current not in decided:
            return
        shown = self.shown()
        start = next((i for i, one in enumerate(shown) if one.id == current), self.place - 1)
        after = [i for i in (*range(start + 1, len(shown)), *range(start)) if not shown[i].decision]
        self.place = after[0] if after else max(0, min(start, len(shown) - 1))

    def _choose_first(self) -> None:
        results = [self.view.report.result(name) for name in ORDER] if self.view.report else []
        found = [one.check for one in results if one is not None and one.findings]
        self.check = found[0] if found else next((one.check for one in results if one is not None), "")
        self._to_first_open()

    def _to_first_open(self) -> None:
        self.place = next((i for i, one in enumerate(self.shown()) if not one.decision), 0)

    def _refresh(self) -> None:
        self.list.show(self._list())
        self.main.show(self._main())
