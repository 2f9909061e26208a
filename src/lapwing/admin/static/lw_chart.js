// Live lines over time. The page sends all points once, then the newest few, of which the new ones are added.
import { echarts } from "nicegui-echart";
import { bytes, colour, count, duration, h, moment, percent, rate, short } from "lapwing-ui";

const flow = (v) => bytes(v) + "/s";
const SAY = { rate: (v) => rate(v) + "/s", count, duration, bytes, flow, share: percent };
const AXIS = { rate: short, count: short, duration, bytes, flow, share: percent };
const known = (v) => v !== null && v !== undefined;
const lone = (values, n) => known(values[n]) && !known(values[n - 1]) && !known(values[n + 1]);
// In a stack the line of a series that is 0 would cover the line below it in a wrong colour: it is left out there.
const thin = (values, n) => !values[n] && !values[n - 1] && !values[n + 1];
// the date where a day begins, the time elsewhere
const LONG = { year: "{MM}-{dd}", month: "{MM}-{dd}", day: "{MM}-{dd}", hour: "{HH}:{mm}", minute: "{HH}:{mm}" };

export default {
  props: { title: String, unit: String, series: Array, points: Object, span: Number, stack: Boolean },
  render() {
    const now = this.series.map((s, i) => `${s.name} ${this.said[i] ?? ""}`).join(", ");
    return h("figure", { class: "lw-chart", role: "group", "aria-label": `${this.title}: ${now}` }, [
      h("figcaption", [
        h("h3", this.title),
        h("span", { class: "lw-legend" }, this.series.map((s, i) => h("span", [
          h("i", { class: "lw-dot", style: { background: `var(--${s.colour})` } }), s.name + " ", h("b", this.said[i] ?? "")]))),
      ]),
      h("div", { ref: "plot", class: "lw-plot", "aria-hidden": "true" }),
    ]);
  },
  data: () => ({ said: [] }),
  created() {
    this.times = [];
    this.values = this.series.map(() => []);
  },
  mounted() {
    this.chart = echarts.init(this.$refs.plot, null, { renderer: "canvas" });
    this.sizes = new ResizeObserver(() => this.$refs.plot?.clientWidth && this.chart.resize());
    this.sizes.observe(this.$refs.plot);
    this.theme = new MutationObserver(() => this.draw());
    this.theme.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    this.join();
  },
  unmounted() {
    this.sizes.disconnect();
    this.theme.disconnect();
    this.chart.dispose();
  },
  watch: { points() { this.join(); } },
  methods: {
    join() {
      const { whole, times, values } = this.points;
      if (whole) {
        this.times = [...times];
        this.values = values.map((v) => [...v]);
      } else {
        const last = this.times.length ? this.times[this.times.length - 1] : 0;
        times.forEach((t, i) => {
          if (t <= last) return;
          this.times.push(t);
          values.forEach((v, s) => this.values[s].push(v[i]));
        });
      }
      const oldest = (this.times[this.times.length - 1] ?? 0) - this.span;
      const drop = this.times.findIndex((t) => t >= oldest);
      if (drop > 0) {
        this.times.splice(0, drop);
        this.values.forEach((v) => v.splice(0, drop));
      }
      this.said = this.values.map((v) => (!v.length ? "" : known(v[v.length - 1]) ? SAY[this.unit](v[v.length - 1]) : "–"));
      this.draw();
    },
    // A point between two gaps is shown as a dot, as it makes no line. Sampling would close the gaps.
    dots(values) {
      if (values.every(known)) return { showSymbol: values.length === 1, sampling: "lttb" };
      const some = values.some((_, n) => lone(values, n));
      return { showSymbol: some, symbol: some ? "none" : "emptyCircle", symbolSize: 4 };
    },
    draw() {
      if (!this.chart) return;
      const ink = colour("ink-2"), line = colour("line"), ground = colour("panel"), say = SAY[this.unit];
      const end = this.times[this.times.length - 1] ?? Date.now() / 1000;
      const begin = Math.max(end - this.span, Math.min(this.times[0] ?? end - this.span, end - 60));
      this.chart.setOption({
        animation: false, useUTC: true, textStyle: { fontFamily: "inherit" }, aria: { enabled: false },
        grid: { left: 4, right: 22, top: 10, bottom: 2, containLabel: true },
        tooltip: {
          trigger: "axis", renderMode: "richText", confine: true, backgroundColor: ground, borderColor: line,
          textStyle: { color: colour("ink"), fontSize: 12 }, axisPointer: { lineStyle: { color: ink, type: "dashed" } },
          formatter: (list) => [moment(list[0].value[0] / 1000), ...list.map((p) => `${p.seriesName}: ${known(this.values[p.seriesIndex][p.dataIndex]) ? say(this.values[p.seriesIndex][p.dataIndex]) : "–"}`)].join("\n"),
        },
        xAxis: { type: "time", min: begin * 1000, max: end * 1000, splitNumber: 5, axisLine: { lineStyle: { color: line } },
          axisTick: { show: false }, axisLabel: { color: ink, fontSize: 11, hideOverlap: true, formatter: end - begin > 129600 ? LONG : "{HH}:{mm}" + (end - begin <= 900 ? ":{ss}" : "") } },
        yAxis: { type: "value", min: 0, minInterval: this.unit === "count" ? 1 : 0, splitNumber: 3, axisLabel: { color: ink, fontSize: 11, formatter: AXIS[this.unit] },
          splitLine: { lineStyle: { color: line } } },
        series: this.series.map((s, i) => ({
          name: s.name, type: "line", ...this.dots(this.stack ? this.values[i].map((v, n) => (thin(this.values[i], n) ? null : v)) : this.values[i]), stack: this.stack ? "all" : undefined,
          z: this.stack ? 2 + this.series.length - i : 2, // where two lines of a stack meet, that of the lower series is seen
          lineStyle: { width: 1.6, color: colour(s.colour) }, itemStyle: { color: colour(s.colour) },
          areaStyle: this.stack || this.series.length === 1 ? { color: colour(s.colour), opacity: this.stack ? 0.25 : 0.12 } : undefined,
          data: this.times.map((t, n) => this.stack && thin(this.values[i], n) ? [t * 1000, null]
            : lone(this.values[i], n) ? { value: [t * 1000, this.values[i][n]], symbol: "circle" } : [t * 1000, this.values[i][n]]),
        })),
      }, { replaceMerge: ["series"] });
    },
  },
};
