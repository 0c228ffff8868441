// A chart of lines: series over epochs, steps or time, in the colours of the theme. Charts of one group share their crosshair.
import { echarts } from "nicegui-echart";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name.startsWith("--") ? name : `--${name}`).trim();

export default {
  template: `<div class="plot" role="img"></div>`,
  props: { spec: Object },
  mounted() {
    this.chart = echarts.init(this.$el, null, { renderer: "canvas" });
    if (this.spec.group) {
      this.chart.group = this.spec.group;
      echarts.connect(this.spec.group);
    }
    this.current = this.spec;
    this.settings = {};
    this.draw();
    this.redraw = () => this.draw();
    window.addEventListener("themechange", this.redraw);
    this.resizer = new ResizeObserver(() => this.chart.resize());
    this.resizer.observe(this.$el);
    this.chart.getZr().on("dblclick", () => this.chart.dispatchAction({ type: "dataZoom", start: 0, end: 100 }));
  },
  beforeUnmount() {
    window.removeEventListener("themechange", this.redraw);
    this.resizer.disconnect();
    this.chart.dispose();
  },
  methods: {
    show(spec) {
      this.current = spec;
      this.draw();
    },
    set(settings) {
      Object.assign(this.settings, settings);
      this.draw();
    },
    save(name) {
      const url = this.chart.getDataURL({ type: "png", pixelRatio: 2, backgroundColor: css("surface") });
      Object.assign(document.createElement("a"), { href: url, download: `${name}.png` }).click();
    },
    draw() {
      this.$el.setAttribute("aria-label", this.current.summary ?? this.current.title ?? "chart");
      this.chart.setOption(option(this.current, this.settings), { replaceMerge: ["series"] });
      this.chart.dispatchAction({ type: "takeGlobalCursor", key: "dataZoomSelect", dataZoomSelectActive: true });
    },
  },
};

function option(spec, settings) {
  const log = settings.log ?? spec.log ?? false;
  const format = formatter(spec.format);
  const label = { color: css("ink-3"), fontSize: 11.5, fontFamily: css("--font") };
  return {
    animation: false,
    grid: { left: 48, right: 16, top: 10, bottom: 26 },
    toolbox: { show: true, itemSize: 0, feature: { dataZoom: { yAxisIndex: "none", icon: { zoom: "path://", back: "path://" } } } },
    tooltip: {
      trigger: "axis",
      axisPointer: { type: "line", lineStyle: { color: css("ink-3"), width: 1 } },
      backgroundColor: css("surface"), borderColor: css("line"), padding: [8, 12], textStyle: { color: css("ink"), fontSize: 12, fontFamily: css("--font") },
      formatter: (points) => tooltip(points, spec, format),
    },
    xAxis: {
      type: "value", min: spec.x?.min ?? 0, max: spec.x?.max ?? "dataMax", splitLine: { show: false }, axisTick: { show: false }, minInterval: spec.x?.whole ? 1 : 0,
      axisLine: { lineStyle: { color: css("line-strong") } }, axisLabel: { ...label, hideOverlap: true, formatter: (v) => v.toLocaleString("en") },
    },
    yAxis: {
      type: log ? "log" : "value", scale: spec.y?.scale ?? false, min: log ? undefined : spec.y?.min, max: spec.y?.max, splitNumber: 4,
      splitLine: { lineStyle: { color: css("grid") } }, axisLabel: { ...label, formatter: format }, axisLine: { show: false }, axisTick: { show: false },
    },
    series: spec.series.flatMap((one) => lines(one, settings.smoothing ?? 0, log)),
  };
}

function lines(one, smoothing, log) {
  const colour = css(one.colour ?? "s1");
  const data = log ? one.data.filter(([, y]) => y > 0) : one.data;
  const base = { type: "line", name: one.name, symbol: "none", sampling: "lttb", progressive: 5000, emphasis: { disabled: true } };
  const style = { color: colour, width: one.thin ? 1.5 : 2, type: one.dash ? [5, 4] : "solid", opacity: one.faint ? 0.55 : 1 };
  const mark = one.best == null ? undefined : {
    symbol: "circle", symbolSize: 9, animation: false, label: { show: false }, itemStyle: { color: css("surface"), borderColor: colour, borderWidth: 2 }, data: [{ coord: one.best }],
  };
  if (!one.smooth || smoothing === 0 || data.length < 3)
    return [{ ...base, data, lineStyle: style, itemStyle: { color: colour }, markPoint: mark }];
  const ghost = { ...base, name: undefined, data, silent: true, tooltip: { show: false }, lineStyle: { ...style, width: 1, opacity: 0.34 }, itemStyle: { color: colour } };
  return [ghost, { ...base, data: smoothed(data, smoothing), lineStyle: style, itemStyle: { color: colour }, markPoint: mark }];
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
  return (v) => (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e6) ? v.toExponential(1) : (+v.toPrecision(3)).toLocaleString("en"));
}

function tooltip(points, spec, format) {
  const shown = points.filter((p) => p.seriesName && !p.seriesName.startsWith("series"));
  if (!shown.length) return "";
  const escape = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
  const rows = shown.map((p) => `<div style="display:flex;gap:8px;align-items:center"><i style="width:14px;height:3px;border-radius:2px;background:${p.color}"></i>${escape(p.seriesName)}<b style="margin-left:auto;padding-left:16px">${format(p.value[1])}</b></div>`);
  return `<b>${escape(spec.x?.label ?? "Epoch")} ${shown[0].value[0].toLocaleString("en")}</b>${rows.join("")}`;
}
