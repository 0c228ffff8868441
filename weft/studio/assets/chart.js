// A chart of lines: series over epochs, steps or time, in the colours of the theme. Charts of one group share crosshair and zoom.
import { chartBase, css, echarts } from "weft-chart";

const ROWS = 200; // of the table view

export default {
  template: `<div class="chart"><div class="plot" role="img" tabindex="0"></div><div class="brush" hidden></div><div class="plot-table scroll" tabindex="0" hidden></div></div>`,
  mixins: [chartBase],
  mounted() {
    if (this.spec.group) {
      this.chart.group = this.spec.group;
      echarts.connect(this.spec.group);
    }
    this.settings = {}; // of the view: log, table, smoothing
    this.range = null; // of x, when zoomed
    this.follow = (event) => event.detail.group === this.spec.group && event.detail.from !== this && this.zoom(event.detail.range, false);
    window.addEventListener("chartzoom", this.follow);
    this.smooth = (event) => event.target.matches("[data-chart-smoothing]") && this.set({ smoothing: Number(event.target.value) });
    document.addEventListener("input", this.smooth);
    const slider = document.querySelector("[data-chart-smoothing]");
    if (slider) this.settings.smoothing = Number(slider.value);
    this.plot.addEventListener("mouseenter", () => (this.hovered = true));
    this.plot.addEventListener("mouseleave", () => (this.hovered = false));
    this.plot.addEventListener("mousedown", this.startBrush);
    this.plot.addEventListener("dblclick", () => this.zoom(null, true));
    this.draw();
  },
  beforeUnmount() {
    window.removeEventListener("chartzoom", this.follow);
    document.removeEventListener("input", this.smooth);
  },
  methods: {
    option() {
      return option(this);
    },
    set(settings) {
      Object.assign(this.settings, settings);
      this.draw();
    },
    // Log scale and table.
    chosen(what, button) {
      this.set({ [what]: !this.settings[what] });
      button.setAttribute("aria-pressed", String(this.settings[what]));
    },
    draw() {
      this.plot.setAttribute("aria-label", this.current.summary ?? this.current.title ?? "chart");
      const table = this.$el.querySelector(".plot-table");
      this.plot.hidden = Boolean(this.settings.table);
      table.hidden = !this.settings.table;
      if (this.settings.table) table.innerHTML = tableOf(this.current);
      else this.chart.setOption(this.option(), { replaceMerge: ["series"] });
    },
    // --- zoom: drag over a part of the x axis, double click shows all; + and - and arrows do the same from the keyboard ------------
    zoom(range, own) {
      this.range = range;
      this.draw();
      if (!own) return;
      window.dispatchEvent(new CustomEvent("chartzoom", { detail: { group: this.spec.group, from: this, range } }));
      this.$emit("zoom", range);
    },
    at(event) {
      return this.chart.convertFromPixel({ xAxisIndex: 0 }, event.clientX - this.plot.getBoundingClientRect().left);
    },
    startBrush(event) {
      if (event.button !== 0) return;
      event.preventDefault(); // no selection of text
      const box = this.plot.getBoundingClientRect(), brush = this.$el.querySelector(".brush"), from = event.clientX, start = this.at(event);
      const move = (e) => {
        const x = Math.min(Math.max(e.clientX, box.left), box.right);
        brush.hidden = Math.abs(x - from) < 4;
        Object.assign(brush.style, { left: `${Math.min(x, from) - box.left}px`, width: `${Math.abs(x - from)}px` });
      };
      const end = (e) => {
        window.removeEventListener("mousemove", move);
        window.removeEventListener("mouseup", end);
        const range = [start, this.at(e)].sort((a, b) => a - b);
        if (!brush.hidden && range[1] > range[0]) this.zoom(range, true);
        brush.hidden = true;
      };
      window.addEventListener("mousemove", move);
      window.addEventListener("mouseup", end);
    },
    key(event) {
      const [low, high] = this.range ?? [this.current.x?.min ?? 0, this.current.x?.max ?? 1];
      const middle = (low + high) / 2, width = high - low;
      const next = { "+": [middle - width / 4, middle + width / 4], "-": [middle - width, middle + width], ArrowLeft: [low - width / 4, high - width / 4], ArrowRight: [low + width / 4, high + width / 4] }[event.key];
      if (event.key === "Escape" && this.range) this.zoom(null, true);
      else if (next && (this.range || event.key === "+")) this.zoom(next, true);
      else return;
      event.preventDefault();
    },
  },
};

function option(self) {
  const { current: spec, settings, range } = self;
  const log = settings.log ?? spec.log ?? false;
  const format = formatter(spec.format), place = formatter(spec.x?.format);
  const label = { color: css("ink-3"), fontSize: 11.5, fontFamily: css("--font") };
  return {
    animation: false,
    grid: { left: 48, right: 16, top: 10, bottom: 26 },
    tooltip: {
      trigger: "axis", confine: true,
      axisPointer: { type: "line", lineStyle: { color: css("ink-3"), width: 1 } },
      backgroundColor: css("surface"), borderColor: css("line"), padding: [8, 12], textStyle: { color: css("ink"), fontSize: 12, fontFamily: css("--font") },
      formatter: (points) => (self.hovered ? tooltip(points, spec, format, place) : ""), // one tooltip, where the pointer is
    },
    xAxis: {
      type: "value", min: range?.[0] ?? spec.x?.min ?? 0, max: range?.[1] ?? spec.x?.max ?? "dataMax", splitLine: { show: false }, axisTick: { show: false }, minInterval: spec.x?.whole && !range ? 1 : 0,
      axisLine: { lineStyle: { color: css("line-strong") } }, axisLabel: { ...label, hideOverlap: true, textMargin: [0, 8], showMinLabel: !range, showMaxLabel: !range, formatter: place },
    },
    yAxis: {
      type: log ? "log" : "value", scale: (spec.y?.scale ?? false) || Boolean(range), min: log || range ? undefined : spec.y?.min, max: range ? undefined : spec.y?.max, splitNumber: 4,
      splitLine: { lineStyle: { color: css("grid") } }, axisLabel: { ...label, formatter: format }, axisLine: { show: false }, axisTick: { show: false },
    },
    series: spec.series.flatMap((one) => lines(one, settings.smoothing ?? 0, log)),
  };
}

function lines(one, smoothing, log) {
  const colour = css(one.colour ?? "s1");
  const data = log ? one.data.filter(([, y]) => y > 0) : one.data;
  const base = { type: "line", name: one.name, symbol: "none", sampling: "lttb", progressive: 5000, emphasis: { disabled: true }, showSymbol: false };
  if (data.length === 1) Object.assign(base, { symbol: "circle", symbolSize: 6, showSymbol: true }); // a line of one point shows nothing
  const style = { color: colour, width: one.thin ? 1.5 : 2, type: one.dash ? [5, 4] : "solid", opacity: one.faint ? 0.55 : 1 };
  const mark = one.best == null ? undefined : {
    symbol: "circle", symbolSize: 9, animation: false, label: { show: false }, itemStyle: { color: css("surface"), borderColor: colour, borderWidth: 2 }, data: [{ coord: one.best }],
  };
  if (!one.smooth || smoothing === 0 || data.length < 3)
    return [{ ...base, data, lineStyle: style, itemStyle: { color: colour }, markPoint: mark }];
  const ghost = { ...base, name: undefined, data, silent: true, tooltip: { show: false }, lineStyle: { ...style, width: 1, opacity: 0.34 }, itemStyle: { color: colour } };
  return [ghost, { ...base, data: smoothed(one.means?.length ? one.means : data, smoothing), lineStyle: style, itemStyle: { color: colour }, markPoint: mark }];
}

// An exponential moving average, corrected for its start.
function smoothed(data, weight) {
  let sum = 0, total = 0;
  return data.map(([x, y]) => {
    sum = weight * sum + (1 - weight) * y;
    total = weight * total + (1 - weight);
    return [x, sum / total];
  });
}

function formatter(kind) {
  if (kind === "percent") return (v) => `${+(100 * v).toFixed(1)} %`;
  if (kind === "bytes") return (v) => (v >= 1e9 ? `${+(v / 1e9).toPrecision(3)} GB` : `${+(v / 1e6).toPrecision(3)} MB`);
  if (kind === "seconds") return (v) => (v >= 5400 ? `${+(v / 3600).toPrecision(3)} h` : v >= 90 ? `${+(v / 60).toPrecision(3)} min` : `${+v.toPrecision(3)} s`);
  return (v) => (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e6) ? v.toExponential(1) : (+v.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 6 }));
}

const escape = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

function tooltip(points, spec, format, place) {
  const shown = points.filter((p) => p.seriesName && !p.seriesName.startsWith("series"));
  if (!shown.length) return "";
  const rows = shown
    .sort((a, b) => b.value[1] - a.value[1])
    .map((p) => `<div style="display:flex;gap:8px;align-items:center"><i style="width:14px;height:3px;border-radius:2px;background:${p.color}"></i>${escape(p.seriesName)}<b style="margin-left:auto;padding-left:16px">${format(p.value[1])}</b></div>`);
  const x = spec.x?.format ? place(shown[0].value[0]) : (+shown[0].value[0].toPrecision(5)).toLocaleString("en");
  return `<b>${escape(spec.x?.label ?? "Epoch")} ${x}</b>${rows.join("")}`;
}

// The same values as a table; of many rows an even selection.
function tableOf(spec) {
  const format = formatter(spec.format), place = formatter(spec.x?.format), columns = spec.series.map((one) => new Map(one.data));
  const all = [...new Set(columns.flatMap((one) => [...one.keys()]))].sort((a, b) => a - b);
  const step = Math.max(1, Math.ceil(all.length / ROWS));
  const head = spec.series.map((one) => `<th class="r">${escape(one.name)}</th>`).join("");
  const rows = all.filter((_, i) => i % step === 0 || i === all.length - 1)
    .map((x) => `<tr><td>${place(x)}</td>${columns.map((one) => `<td class="r num">${one.has(x) ? format(one.get(x)) : "–"}</td>`).join("")}</tr>`);
  return `<table class="tbl plain dense"><thead><tr><th>${escape(spec.x?.label ?? "Epoch")}</th>${head}</tr></thead><tbody>${rows.join("")}</tbody></table>`;
}
