// A map of boxes in columns, and lines between them that are as thick as their messages a second are many.
import { h, icon, rate } from "lapwing-ui";

const ROW = 54, HIGH = 42, HEAD = 30, NARROW = 860, GAP = 0.36; // GAP: the part of a column that lines have
const SIGNS = { producer: "upload", topic: "topic", channel: "alt_route", consumer: "download", pipeline: "account_tree", dead: "unsubscribe" };
const mean = (list) => list.reduce((sum, n) => sum + n, 0) / list.length;

export default {
  props: { graph: Object },
  data: () => ({ width: NARROW, hot: "" }),
  mounted() {
    this.sizes = new ResizeObserver(() => (this.width = Math.max(NARROW, this.$el.clientWidth)));
    this.sizes.observe(this.$el);
  },
  unmounted() {
    this.sizes.disconnect();
  },
  methods: {
    // Readers stand below each other, a channel beside the middle of its readers, a topic beside that of its channels,
    // and producers as near as they can to what they publish to.
    rows() {
      const { boxes, edges } = this.graph, row = {}, of = (column) => boxes.filter((box) => box[1] === column).map((box) => box[0]);
      const after = (id) => edges.filter((edge) => edge[0] === id).map((edge) => edge[1]);
      let next = 0;
      for (const topic of of(1)) {
        const first = next;
        for (const channel of after(topic)) {
          const begin = next;
          for (const reader of after(channel)) if (row[reader] === undefined) row[reader] = next++;
          if (next === begin) next++;
          row[channel] = (begin + next - 1) / 2;
        }
        if (next === first) next++;
        row[topic] = (first + next - 1) / 2;
      }
      const wanted = of(0).map((id) => [mean(after(id).map((each) => row[each] ?? 0)), id]).sort((a, b) => a[0] - b[0]);
      const room = Math.max(0, next - wanted.length);
      let free = 0;
      wanted.forEach(([at, id], number) => {
        row[id] = Math.max(free, Math.min(at, number + room));
        free = row[id] + 1;
      });
      return row;
    },
    place(box, row) {
      const step = this.width / this.graph.columns.length, wide = step * (1 - GAP);
      return { left: step * box[1] + (step * GAP) / 2, top: HEAD + row[box[0]] * ROW, wide };
    },
    line(edge, places) {
      const [from, to, flow] = edge, a = places[from], b = places[to];
      if (!a || !b) return [];
      const x = a.left + a.wide, y = a.top + HIGH / 2, u = b.left, v = b.top + HIGH / 2, half = (u - x) / 2;
      const dead = to.startsWith("d "), dim = this.hot && this.hot !== from && this.hot !== to;
      const kind = `lw-edge${flow > 0 ? " lw-moving" : ""}${dead ? " lw-dead" : ""}${dim ? " lw-dim" : ""}`;
      const drawn = [h("path", { class: kind, d: `M${x},${y} C${x + half},${y} ${u - half},${v} ${u},${v}`, "stroke-width": 1.2 + Math.log10(1 + flow) * 1.6 })];
      // beside the end where fewer lines meet; where many meet at both, numbers would cover each other
      const leaving = this.graph.edges.filter((each) => each[0] === from).length, near = leaving > 1 ? 0.72 : 0.3;
      const crowded = leaving > 1 && this.graph.edges.filter((each) => each[1] === to).length > 1;
      if (flow > 0 && (this.hot ? !dim : !crowded)) drawn.push(h("text", { x: x + (u - x) * near, y: y + (v - y) * (near > 0.5 ? 0.86 : 0.12) - 4 }, rate(flow)));
      return drawn;
    },
  },
  render() {
    const { columns, boxes, edges } = this.graph, row = this.rows();
    const places = Object.fromEntries(boxes.map((box) => [box[0], this.place(box, row)]));
    const high = HEAD + ROW * (1 + Math.max(0, ...Object.values(row)));
    const px = (n) => `${Math.round(n)}px`, step = this.width / columns.length;
    return h("section", { class: "lw-panel lw-map", "aria-label": "Map", tabindex: 0 }, [
      h("div", { class: "lw-map-plane", style: { width: px(this.width), height: px(high) } }, [
        h("svg", { width: this.width, height: high, "aria-hidden": "true" }, edges.flatMap((edge) => this.line(edge, places))),
        columns.map((name, number) => h("h2", { style: { left: px(step * (number + GAP / 2)) } }, name)),
        boxes.map((box) => {
          const [id, , kind, name, fact, tone, href] = box, at = places[id];
          const on = () => (this.hot = id), off = () => (this.hot = "");
          return h(href ? "a" : "div", {
            key: id, class: `lw-box lw-${kind}${tone ? " lw-" + tone : ""}`, href: href || undefined, title: name,
            style: { left: px(at.left), top: px(at.top), width: px(at.wide) },
            onMouseenter: on, onMouseleave: off, onFocus: on, onBlur: off,
          }, [icon(SIGNS[kind]), h("span", [h("span", { class: "lw-hidden" }, `${kind} `), h("b", name), fact ? h("small", fact) : null])]);
        }),
      ]),
    ]);
  },
};
