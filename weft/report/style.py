"""The CSS of report pages; charts have their own rules."""

from __future__ import annotations

from .svg import DARK, FONT, LIGHT, SERIES


def _names(of: dict[str, str], shade: int, back: str) -> str:
    """CSS variables of the colours in light or dark mode."""
    return (
        "".join(f"--{name}:{colour};" for name, colour in of.items())
        + f"--back:{back};--mark:{SERIES[0][shade]};--warn:{SERIES[1][shade]}"
    )


STYLE = (
    f":root{{{_names(LIGHT, 0, '#f4f6f8')}}}@media (prefers-color-scheme:dark){{:root{{{_names(DARK, 1, '#0f1216')}}}}}"
    + "*{box-sizing:border-box}"
    + f"body{{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 {FONT}}}"
    + """
main{max-width:1180px;margin:0 auto;padding:32px 24px 48px}
header{margin-bottom:20px}
.run{margin:0;color:var(--soft);font-size:13px;overflow-wrap:anywhere}
h1{margin:2px 0;font-size:28px;line-height:1.2;font-weight:650;overflow-wrap:anywhere}
.lead{margin:4px 0 0;font-size:17px;color:var(--soft)}
h2{margin:36px 0 12px;font-size:19px;font-weight:600}
h3{margin:20px 0 8px;font-size:15px;font-weight:600}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(132px,1fr));gap:12px}
.tiles div,.card,pre,table{background:var(--paper);border:1px solid var(--grid);border-radius:8px}
.tiles div{padding:12px 14px}
.tiles b{display:block;white-space:nowrap;font-size:20px;line-height:1.25;font-weight:600;font-variant-numeric:tabular-nums}
.tiles span{color:var(--soft);font-size:13px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px;align-items:start}
.card{padding:4px;overflow:hidden;break-inside:avoid}
.card.wide{margin-bottom:16px}
.card svg{display:block;max-width:100%;height:auto}
.cards .card svg{width:100%;max-width:680px}
.note{margin:12px 0 0;padding:10px 14px;background:var(--paper);border:1px solid var(--grid);border-left:4px solid var(--warn);border-radius:6px;overflow-wrap:anywhere}
pre{margin:0;padding:14px 16px;overflow:auto;max-height:480px;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
table{width:100%;border-spacing:0;overflow:hidden}
th,td{padding:6px 14px;text-align:left;vertical-align:top;font-weight:400;overflow-wrap:anywhere}
tr+tr th,tr+tr td{border-top:1px solid var(--grid)}
th{color:var(--soft);width:30%}
.narrow th{width:auto}
.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
footer{margin-top:36px;color:var(--soft);font-size:13px}
@media print{body{background:#fff}pre{max-height:none}}
"""
)
