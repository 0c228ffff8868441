// The roofline: each layer a dot at its operations a byte and its rate, below the roofs of devices. Both axes are logarithmic.
import { chartBase, css } from "weft-chart";

const escape = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
const three = (v) => (+v.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 6 });
const rate = (v) => (v >= 1e12 ? `${three(v / 1e12)} T` : v >= 1e9 ? `${three(v / 1e9)} G` : `${three(v / 1e6)} M`);

export default {
  template: `<div class="chart"><div class="plot" role="img" tabindex="0"></div></div>`,
  mixins: [chartBase],
  mounted() {
    this.chart.on("click", (event) => event.data?.layer && this.$emit("select", event.data.layer.label));
    this.draw();
  },
  methods: {
    option() {
      return option(this.current, this.plot.clientWidth);
    },
    draw() {
      this.plot.setAttribute("aria-label", this.current.summary);
      this.chart.setOption(this.option(), { notMerge: true });
    },
    resized() {
      this.chart.resize();
      this.draw(); // labels depend on the width
    },
    // Arrow keys go from layer to layer, in the order of their intensity.
    key(event) {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const dots = [...(this.current.series[0]?.after ?? [])].sort((a, b) => a.x - b.x);
      if (!step || !dots.length) return;
      const at = dots.findIndex((dot) => dot.label === this.current.selected);
      this.$emit("select", dots[(at + step + dots.length) % dots.length].label);
      event.preventDefault();
    },
  },
};

const ten = (v, way) => 10 ** Math[way](Math.log10(v));

// Powers of ten around all dots and the corners of the roofs.
function range(spec) {
  const dots = spec.series.flatMap((one) => [...one.after, ...one.before]);
  const roofs = spec.series.filter((one) => one.bandwidth && one.peaks.length);
  const corners = roofs.flatMap((one) => one.peaks.map(([, peak]) => peak / one.bandwidth));
  const xs = [...dots.map((dot) => dot.x), ...corners], ys = [...dots.map((dot) => dot.y), ...roofs.flatMap((one) => one.peaks.map(([, peak]) => peak))];
  if (!xs.length) return { x: [0.1, 1000], y: [1e9, 1e12] };
  return { x: [ten(Math.min(...xs) / 1.2, "floor"), ten(Math.max(...xs) * 2, "ceil")], y: [ten(Math.min(...ys) / 1.2, "floor"), ten(Math.max(...ys) * 1.2, "ceil")] };
}

function option(spec, width) {
  const { x, y } = range(spec), narrow = width < 480;
  const label = { color: css("ink-3"), fontSize: 11.5, fontFamily: css("--font") };
  const compare = spec.series.some((one) => one.before.length);
  return {
    animation: false,
    grid: { left: narrow ? 44 : 56, right: 24, top: 20, bottom: 40 },
    tooltip: {
      trigger: "item", confine: true, backgroundColor: css("surface"), borderColor: css("line"), padding: [8, 12],
      textStyle: { color: css("ink"), fontSize: 12, fontFamily: css("--font") },
      formatter: (point) => (point.data?.layer ? tooltip(point.data, spec, compare) : ""),
    },
    xAxis: {
      type: "log", min: x[0], max: x[1], name: narrow ? "FLOP per byte" : "FLOP per byte moved; height is GFLOP/s", nameLocation: "middle", nameGap: 24, nameTextStyle: label,
      splitLine: { show: false }, axisTick: { show: false }, axisLine: { lineStyle: { color: css("line-strong") } }, axisLabel: { ...label, formatter: (v) => v.toLocaleString("en", { maximumFractionDigits: 6 }) },
    },
    yAxis: {
      type: "log", min: y[0], max: y[1], splitLine: { lineStyle: { color: css("grid") } }, axisLine: { show: false }, axisTick: { show: false },
      axisLabel: { ...label, formatter: (v) => (v / 1e9).toLocaleString("en", { maximumFractionDigits: 6 }) },
    },
    series: spec.series.flatMap((one) => [...roofs(one, x, y, label, narrow), ...dots(one, spec, compare)]),
  };
}

function roofs(one, x, y, label, narrow) {
  if (!one.bandwidth || !one.peaks.length) return [];
  const colour = css(one.colour), line = { type: "line", symbol: "none", silent: true, tooltip: { show: false }, z: 1 };
  const [[, first]] = one.peaks, start = Math.max(x[0], y[0] / one.bandwidth);
  const halo = { textBorderColor: css("surface"), textBorderWidth: 3 };
  const note = (text, value, extra) => ({ value, label: { show: true, formatter: text, ...label, ...halo, ...extra } });
  const name = { b: { ...halo, color: css("ink"), fontWeight: 600, fontSize: 11.5, fontFamily: css("--font") } };
  const notes = narrow // one label: others would cover the dots
    ? [note(`{b|${one.name}} ${rate(first)}FLOP/s, ${rate(one.bandwidth)}B/s`, [x[1], first], { position: "left", offset: [0, -9], rich: name })]
    : [
        note(`{b|${one.name}} ${rate(first)}FLOP/s`, [first / one.bandwidth, first], { position: "left", offset: [-2, -8], rich: name }),
        note(`${rate(one.bandwidth)}B/s`, [start, start * one.bandwidth], { position: "right", offset: [6, 14] }),
        ...one.peaks.slice(1).map(([bits, peak]) => note(`${rate(peak)}FLOP/s in ${bits}`, [x[1], peak], { position: "left", offset: [0, -9] })),
      ];
  const lines = one.peaks.map(([, peak], i) => ({
    ...line, data: [i === 0 ? [start, start * one.bandwidth] : [first / one.bandwidth, first], [peak / one.bandwidth, peak], [x[1], peak]],
    lineStyle: { color: colour, width: i === 0 ? 2 : 1.2, type: i === 0 ? "solid" : [5, 4], opacity: i === 0 ? 1 : 0.6 },
  }));
  return [...lines, { type: "scatter", symbolSize: 1, silent: true, tooltip: { show: false }, z: 4, itemStyle: { color: "transparent" }, data: notes }];
}

// Ring is before, filled dot is after; the chosen layer has a ring of ink, and a line to where it was.
function dots(one, spec, compare) {
  const colour = css(one.colour), places = new Map(one.before.map((dot) => [dot.label, dot]));
  const item = (dot, when, style) => ({ value: [dot.x, dot.y], layer: dot, device: one.name, when, ...style });
  const after = one.after.map((dot) => item(dot, "after", dot.label === spec.selected
    ? { symbolSize: 13, itemStyle: { color: colour, borderColor: css("ink"), borderWidth: 2, shadowColor: css("surface"), shadowBlur: 0 } }
    : { symbolSize: 8, itemStyle: { color: colour, borderColor: css("surface"), borderWidth: 1.5 } }));
  const before = one.before.map((dot) => item(dot, "before", { symbolSize: 8, itemStyle: { color: css("surface"), borderColor: colour, borderWidth: 1.5, opacity: 0.75 } }));
  const chosen = one.after.find((dot) => dot.label === spec.selected), was = chosen && places.get(chosen.label);
  const base = { type: "scatter", emphasis: { scale: 1.4 }, cursor: "pointer" };
  const found = [{ ...base, data: before, z: 2 }, { ...base, data: after, z: 3 }];
  if (compare && was) found.push({ type: "line", symbol: "none", silent: true, z: 2, data: [[was.x, was.y], [chosen.x, chosen.y]], lineStyle: { color: css("ink-2"), width: 1 } });
  return found;
}

function tooltip(data, spec, compare) {
  const { layer, device } = data, of = spec.series.find((one) => one.name === device);
  const row = (ring, name, dot) => dot ? `<div style="display:flex;gap:8px;align-items:center"><i style="width:8px;height:8px;border-radius:50%;box-sizing:border-box;${ring ? `border:2px solid ${css(of.colour)}` : `background:${css(of.colour)}`}"></i>${name}<b style="margin-left:auto;padding-left:16px">${three(dot.ms)} ms · ${Math.round(100 * dot.roof)} % of roof</b></div>` : "";
  const find = (list) => list.find((dot) => dot.label === layer.label);
  const rows = compare ? row(true, escape(of.names[0]), find(of.before)) + row(false, escape(of.names[1]), find(of.after)) : row(false, "bound by " + escape(layer.bound), layer);
  return `<b>${escape(layer.label)}</b> <span style="color:${css("ink-2")}">· ${escape(device)}${layer.kind ? `, ${escape(layer.kind)}` : ""}</span>${rows}<div style="color:${css("ink-2")}">${rate(layer.y)}FLOP/s at ${three(layer.x)} FLOP per byte</div>`;
}
