// What charts have in common: an ECharts canvas in the colours of the theme, redrawn when its size or the theme changes, with downloads and full screen.
// A chart that mixes this in has a .plot in its template and the methods option() and key(event). chosen(what, button) handles further buttons of its card.
import { echarts } from "nicegui-echart";

export { echarts };
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name.startsWith("--") ? name : `--${name}`).trim();

export const chartBase = {
  props: { spec: Object },
  mounted() {
    this.plot = this.$el.querySelector(".plot");
    this.chart = echarts.init(this.plot, null, { renderer: "canvas" });
    this.current = this.spec;
    this.redraw = () => this.draw();
    window.addEventListener("themechange", this.redraw);
    this.resizer = new ResizeObserver(() => this.resized());
    this.resizer.observe(this.plot);
    this.card = this.$el.closest(".card") ?? this.$el;
    this.card.addEventListener("click", this.clicked);
    this.plot.addEventListener("keydown", this.key);
  },
  beforeUnmount() {
    window.removeEventListener("themechange", this.redraw);
    this.card.removeEventListener("click", this.clicked);
    this.resizer.disconnect();
    this.chart.dispose();
  },
  methods: {
    show(spec) {
      this.current = spec;
      this.draw();
    },
    resized() {
      this.chart.resize();
    },
    // Buttons in the head of the card: data-chart is png, svg, full, or what the chart itself knows.
    clicked(event) {
      const button = event.target.closest("[data-chart]");
      if (!button) return;
      const what = button.dataset.chart;
      if (what === "full") this.full();
      else if (what === "png" || what === "svg") this.save(button.dataset.name ?? "chart", what);
      else this.chosen(what, button);
      button.closest("details")?.removeAttribute("open");
    },
    save(name, format) {
      const url = format === "svg" ? this.svg() : this.chart.getDataURL({ type: "png", pixelRatio: 2, backgroundColor: css("surface") });
      Object.assign(document.createElement("a"), { href: url, download: `${name}.${format}` }).click();
    },
    svg() {
      const made = echarts.init(null, null, { renderer: "svg", ssr: true, width: this.plot.clientWidth || 640, height: this.plot.clientHeight || 240 });
      made.setOption({ ...this.option(), backgroundColor: css("surface") });
      const text = made.renderToSVGString();
      made.dispose();
      return URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    },
    full() {
      if (document.fullscreenElement) document.exitFullscreen();
      else this.card.requestFullscreen();
    },
  },
};
