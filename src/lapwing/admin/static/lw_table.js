// A table of live rows: sorted, filtered and paged in the browser, saved as CSV or JSON, a list of cards on a phone.
// Every cell becomes a text node or an attribute: nothing that comes from the cluster is ever read as markup.
import { bytes, clock, count, csvCell, duration, fromAddress, h, icon, marked, moment, rate, save, toAddress } from "lapwing-ui";

const PAGE = 100;

const labels = (list) =>
  (list || []).map(([text, tone, title]) => h("span", { class: ["lw-label", tone && "lw-" + tone], title }, text));

// kind -> how a cell is shown, what it says as text, what it is sorted by
const KINDS = {
  text: { show: (v) => v, say: (v) => v ?? "", sort: (v) => (v ?? "").toString().toLowerCase() },
  code: { show: (v) => h("code", v), say: (v) => v ?? "", sort: (v) => v ?? "" },
  num: { show: count, say: (v) => String(v ?? ""), sort: (v) => v ?? -1, number: true },
  rate: { show: rate, say: (v) => (v ?? null) === null ? "" : v.toFixed(2), sort: (v) => v ?? -1, number: true },
  dur: { show: duration, say: (v) => String(v ?? ""), sort: (v) => v ?? -1, number: true },
  bytes: { show: bytes, say: (v) => String(v), sort: (v) => v, number: true },
  time: { show: (v) => moment(v), say: (v) => (v ? new Date(v * 1000).toISOString() : ""), sort: (v) => v, number: true },
  stamp: { show: (v) => h("span", { title: moment(v, true) }, clock(v)), say: (v) => (v ? new Date(v * 1000).toISOString() : ""), sort: (v) => v },
  mem: {
    show: (v) => [count(v[0]), h("span", { class: "lw-faint" }, " + "), count(v[1])],
    say: (v) => `${v[0]} + ${v[1]}`, sort: (v) => v[0] + v[1], number: true,
  },
  latency: {
    show: (v) => (v ? h("span", { title: `min ${duration(v[1] / 1e9)}, max ${duration(v[2] / 1e9)}` }, duration(v[0] / 1e9)) : "–"),
    say: (v) => (v ? String(v[0]) : ""), sort: (v) => (v ? v[0] : -1), number: true,
  },
  link: {
    show: (v) => (v ? [v[1] ? h("a", { href: v[1], title: v[4] ?? v[0] }, v[0]) : h("span", { title: v[4] ?? v[0] }, v[0]),
      v[2] ? h("span", { class: "lw-sub" }, v[2]) : null, ...labels(v[3])] : ""),
    say: (v) => (v ? v[0] : ""), sort: (v) => (v ? v[0].toLowerCase() : ""), more: (v) => (v && v[3] ? v[3].map((l) => l[0]).join(" ") : ""),
  },
  links: {
    show: (v) => (v || []).map(([text, href, tone]) => h("a", { href, class: ["lw-label", tone && "lw-" + tone] }, text)),
    say: (v) => (v || []).map((l) => l[0]).join(" "), sort: (v) => (v || []).length,
  },
  labels: { show: labels, say: (v) => (v || []).map((l) => l[0]).join(" "), sort: (v) => (v || []).map((l) => l[0]).join(" ") },
  share: {
    show: (v) => (v ? h("span", { class: "lw-share", title: v.map(([name, part]) => `${name} ${part.toFixed(1)} %`).join(", "),
      role: "img", "aria-label": v.map(([name, part]) => `${name} ${part.toFixed(1)} %`).join(", ") },
      v.map(([name, part]) => h("i", { class: "lw-" + name, style: { width: part + "%" } }))) : ""),
    say: (v) => (v ? v.map(([name, part]) => `${name} ${part.toFixed(1)}%`).join(" ") : ""), sort: (v) => (v ? v[0][1] : 0),
  },
};

export default {
  props: { name: String, caption: String, columns: Array, rows: Array, total: Array, empty: String, plain: Boolean,
    pick: Boolean, picked: String, order: String, tint: Object, mark: String },
  emits: ["act", "pick"],
  data() {
    const [by, down] = (fromAddress(this.name + ".sort") || this.order || "").split(":");
    return { query: fromAddress(this.name + ".q") || "", by, down: down === "down", page: 0, menu: null, place: {} };
  },
  computed: {
    kinds() {
      return this.columns.map((c) => KINDS[c.kind] || null);
    },
    matching() {
      const words = this.query.toLowerCase().split(/\s+/).filter(Boolean);
      if (!words.length) return this.rows;
      return this.rows.filter((row) => {
        const text = this.kinds.map((k, i) => (k ? k.say(row[i + 1]) + " " + (k.more ? k.more(row[i + 1]) : "") : "")).join(" ").toLowerCase();
        return words.every((w) => text.includes(w));
      });
    },
    sorted() {
      const i = this.columns.findIndex((c) => c.key === this.by);
      if (i < 0 || !this.kinds[i]) return this.matching;
      const value = this.kinds[i].sort;
      const list = this.matching.map((row, n) => [value(row[i + 1]), n, row]);
      const way = this.down ? -1 : 1;
      list.sort((a, b) => (a[0] < b[0] ? -way : a[0] > b[0] ? way : a[1] - b[1]));
      return list.map((x) => x[2]);
    },
    pages() {
      return Math.max(1, Math.ceil(this.sorted.length / PAGE));
    },
    shown() {
      const page = Math.min(this.page, this.pages - 1);
      return this.sorted.slice(page * PAGE, page * PAGE + PAGE);
    },
  },
  methods: {
    sort(column) {
      const numeric = KINDS[column.kind]?.number;
      if (this.by === column.key) this.down = !this.down;
      else [this.by, this.down] = [column.key, Boolean(numeric)];
      toAddress(this.name + ".sort", this.by + (this.down ? ":down" : ""));
    },
    filter(event) {
      this.query = event.target.value;
      this.page = 0;
      toAddress(this.name + ".q", this.query);
    },
    saved(type) {
      const cols = this.columns.map((c, i) => [c, this.kinds[i], i + 1]).filter(([, k]) => k);
      if (type === "csv") {
        const lines = [cols.map(([c]) => csvCell(c.label))];
        for (const row of this.sorted) lines.push(cols.map(([, k, i]) => csvCell(String(k.say(row[i])))));
        save(this.name + ".csv", "text/csv", lines.map((l) => l.join(",")).join("\r\n") + "\r\n");
      } else {
        const value = (k, v) => (k.number && typeof v === "number" ? v : k.say(v));
        const list = this.sorted.map((row) => Object.fromEntries(cols.map(([c, k, i]) => [c.label, value(k, row[i])])));
        save(this.name + ".json", "application/json", JSON.stringify(list, null, 2));
      }
    },
    openMenu(event, row) {
      // fixed to the window: the table scrolls sideways and would cut it off
      const at = event.currentTarget.getBoundingClientRect();
      const above = at.bottom + 170 > innerHeight;
      this.place = { right: innerWidth - at.right + "px", ...(above ? { bottom: innerHeight - at.top + "px" } : { top: at.bottom + "px" }) };
      this.menu = row;
      this.opener = event.currentTarget;
      if (row !== null) this.$nextTick(() => this.$el.querySelector("[role=menu] button")?.focus());
    },
    menuKey(event) {
      const items = [...this.$el.querySelectorAll("[role=menu] button")];
      const at = items.indexOf(document.activeElement);
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") {
        this.menu = null;
        this.opener?.focus();
      } else if (step && items.length) items[(at + step + items.length) % items.length].focus();
      else return;
      event.preventDefault();
    },
    close(event) {
      if (!event || event.type !== "focusout" || !event.currentTarget.contains(event.relatedTarget)) this.menu = null;
    },
    actions(row, list) {
      if (!list || !list.length) return "";
      const open = this.menu === row[0];
      return h("div", { class: "lw-menu", onFocusout: this.close, onKeydown: this.menuKey }, [
        h("button", { type: "button", class: "lw-icon-button", "aria-haspopup": "menu", "aria-expanded": String(open),
          "aria-label": "Actions for " + this.nameOf(row), onClick: (e) => this.openMenu(e, open ? null : row[0]) },
        icon("more_vert")),
        open ? h("div", { role: "menu", class: "lw-popup", style: this.place }, list.map(([action, label, tone]) =>
          h("button", { type: "button", role: "menuitem", class: tone && "lw-" + tone,
            onClick: () => { this.menu = null; this.$emit("act", { action, row: row[0] }); } }, label))) : null,
      ]);
    },
    nameOf(row) {
      const i = this.columns.findIndex((c) => c.kind === "link" || c.kind === "text");
      return i < 0 ? row[0] : KINDS[this.columns[i].kind].say(row[i + 1]);
    },
    cell(row, column, i, body) {
      const value = row[i + 1];
      const kind = this.kinds[i];
      const content = column.kind === "actions" ? (body ? this.actions(row, value) : "") : value === null && !kind?.show ? ""
        : column.kind === "code" && this.mark ? h("code", marked(value, this.mark)) : kind.show(value);
      const first = i === 0;
      const tag = first ? "th" : "td";
      const props = { class: [kind?.number && "lw-num", column.kind === "actions" && "lw-act", column.wide && "lw-wide", "lw-" + column.kind],
        "data-label": column.label, role: first ? "rowheader" : "cell" };
      if (first) props.scope = "row";
      if (first && body && this.pick) {
        return h(tag, props, h("button", { type: "button", class: "lw-pick", "aria-pressed": String(this.picked === row[0]),
          onClick: () => this.$emit("pick", row[0]) }, content));
      }
      return h(tag, props, content);
    },
    // the whole row is a target for the mouse; the button in its first cell is the one for the keyboard
    clicked(event, row) {
      if (event.target.closest("a, button, input") || String(getSelection())) return;
      this.$emit("pick", row[0]);
    },
    bar() {
      if (this.plain || (!this.rows.length && !this.query)) return null;
      const many = this.rows.length;
      const said = this.query ? `${count(this.matching.length)} of ${count(many)}` : `${count(many)}`;
      return h("div", { class: "lw-bar" }, [
        h("input", { type: "search", class: "lw-filter", placeholder: "Filter", "aria-label": `Filter ${this.caption}`,
          value: this.query, onInput: this.filter }),
        h("span", { class: "lw-faint lw-said", "aria-live": "polite" }, `${said} ${many === 1 ? "row" : "rows"}`),
        h("span", { class: "lw-grow" }),
        h("button", { type: "button", class: "lw-quiet", title: `Save ${this.caption} as CSV`, onClick: () => this.saved("csv") }, "CSV"),
        h("button", { type: "button", class: "lw-quiet", title: `Save ${this.caption} as JSON`, onClick: () => this.saved("json") }, "JSON"),
      ]);
    },
    head() {
      return h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, this.columns.map((c) => {
        const kind = KINDS[c.kind];
        const props = { scope: "col", role: "columnheader", class: [kind?.number && "lw-num", c.wide && "lw-wide", c.label.length > 9 && "lw-wrap"], title: c.title };
        if (!kind) return h("th", props, h("span", { class: "lw-hidden" }, c.label));
        const mine = this.by === c.key;
        if (mine) props["aria-sort"] = this.down ? "descending" : "ascending";
        return h("th", props, h("button", { type: "button", onClick: () => this.sort(c) },
          [c.label, h("i", { class: ["lw-way", mine && "lw-on"], "aria-hidden": "true" }, mine && !this.down ? "▲" : "▼")]));
      })));
    },
    foot() {
      if (this.pages < 2) return null;
      const page = Math.min(this.page, this.pages - 1);
      const turn = (to, label, sign, off) => h("button", { type: "button", class: "lw-icon-button", disabled: off, "aria-label": label,
        onClick: () => (this.page = to) }, icon(sign));
      return h("nav", { class: "lw-pages", "aria-label": `Pages of ${this.caption}` }, [
        turn(page - 1, "Previous page", "chevron_left", page === 0), h("span", `${page + 1} / ${this.pages}`),
        turn(page + 1, "Next page", "chevron_right", page >= this.pages - 1)]);
    },
  },
  render() {
    const body = this.shown.map((row) => h("tr", { key: row[0], role: "row", onClick: this.pick ? (e) => this.clicked(e, row) : undefined,
      class: [this.pick && "lw-pickable", this.picked === row[0] && "lw-picked", this.tint?.[row[0]] && "lw-row-" + this.tint[row[0]]] },
      this.columns.map((c, i) => this.cell(row, c, i, true))));
    if (this.total) body.push(h("tr", { key: "total", role: "row", class: ["lw-total", this.rows.length === 1 && "lw-alone"] }, this.columns.map((c, i) => this.cell(this.total, c, i, false))));
    const none = !this.rows.length && this.empty ? h("p", { class: "lw-empty" }, this.empty)
      : !this.matching.length && this.rows.length ? h("p", { class: "lw-empty" }, "Nothing fits this filter.") : null;
    return h("div", { class: "lw-table" }, [
      this.bar(),
      none || h("div", { class: "lw-scroll", tabindex: 0, role: "region", "aria-label": this.caption },
        h("table", { role: "table" }, [h("caption", { class: "lw-hidden" }, this.caption), this.head(), h("tbody", { role: "rowgroup" }, body)])),
      this.foot(),
    ]);
  },
};
