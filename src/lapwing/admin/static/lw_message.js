// One message with its headers and its body as text, as a JSON tree, as hex, or as the fields of a Redis entry. Everything becomes text nodes.
import { bytes, h, marked, moment } from "lapwing-ui";

const WAYS = [["fields", "Fields"], ["text", "Text"], ["json", "JSON"], ["hex", "Hex"]];
const MOST = 200;
const DEEPEST = 100; // levels of a JSON tree; beyond, the browser's stack could overflow

function raw(message) {
  if (message.body !== null && message.body !== undefined) return new TextEncoder().encode(message.body);
  return Uint8Array.from(atob(message.body_base64 || ""), (c) => c.charCodeAt(0));
}

function parsed(message) {
  try {
    const value = JSON.parse(message.body);
    return value !== null && typeof value === "object" ? { value } : null;
  } catch {
    return null;
  }
}

function leaf(value, mark) {
  const kind = value === null ? "null" : typeof value;
  return h("span", { class: "lw-json-" + kind }, marked(JSON.stringify(value), mark));
}

function tree(key, value, depth, mark) {
  const name = key === null ? null : [h("span", { class: "lw-json-key" }, marked(String(key), mark)), ": "];
  if (value === null || typeof value !== "object") return h("li", [name, leaf(value, mark)]);
  const entries = Array.isArray(value) ? value.map((v, i) => [i, v]) : Object.entries(value);
  const sum = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  if (depth >= DEEPEST) return h("li", [name, h("span", { class: "lw-faint" }, `${sum} … deeper levels are in the text`)]);
  const shown = entries.slice(0, MOST).map(([k, v]) => tree(k, v, depth + 1, mark));
  if (entries.length > MOST) shown.push(h("li", { class: "lw-faint" }, `… ${entries.length - MOST} more`));
  return h("li", h("details", { open: depth < 2 }, [h("summary", [name, h("span", { class: "lw-faint" }, sum)]), h("ul", shown)]));
}

function hex(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, 16384); at += 16) {
    const part = [...data.slice(at, at + 16)];
    const codes = part.map((b) => b.toString(16).padStart(2, "0")).join(" ").padEnd(48);
    const text = part.map((b) => (b >= 32 && b < 127 ? String.fromCharCode(b) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes} ${text}`);
  }
  if (data.length > 16384) lines.push(`… ${data.length - 16384} bytes more`);
  return lines.join("\n");
}

export default {
  props: { message: Object, mark: String, empty: String },
  data: () => ({ way: null }),
  render() {
    const m = this.message;
    if (!m) return h("p", { class: "lw-empty" }, this.empty || "Choose a message to see all of it.");
    const json = parsed(m);
    const has = { fields: Boolean(m.pairs), json: Boolean(json), text: true, hex: true };
    const way = this.way && has[this.way] ? this.way : m.pairs ? "fields" : json ? "json" : m.body === null || m.body === undefined ? "hex" : "text";
    const facts = m.facts || [["Sequence", m.sequence], ["Id", m.id], ["Published", moment(m.timestamp / 1e9, true) + " UTC"], ["Attempts", m.attempts], ["Size", bytes(m.size ?? raw(m).length)]];
    if (m.node && !m.facts) facts.push(["Node", m.node]);
    const headers = Object.entries(m.headers || {});
    return h("div", { class: "lw-message" }, [
      h("dl", { class: "lw-facts" }, facts.map(([k, v]) => h("div", [h("dt", k), h("dd", String(v))]))),
      headers.length ? h("div", [h("h3", "Headers"), h("dl", { class: "lw-facts" }, headers.map(([k, v]) => h("div", [h("dt", k), h("dd", marked(String(v), this.mark))])))]) : null,
      m.error ? h("div", [h("h3", "Error"), h("pre", { class: "lw-body lw-error-text", tabindex: 0 }, m.error)]) : null,
      h("div", { class: "lw-tabs", role: "tablist", "aria-label": "Show the body as" }, WAYS.filter(([key]) => key !== "fields" || has.fields).map(([key, label]) =>
        h("button", { type: "button", role: "tab", "aria-selected": String(way === key), disabled: !has[key],
          onClick: () => (this.way = key) }, label))),
      way === "fields" ? h("dl", { class: "lw-fields", role: "tabpanel" }, m.pairs.map(([k, v]) => [h("dt", marked(k, this.mark)), h("dd", marked(v, this.mark))]))
        : way === "json" ? h("ul", { class: "lw-json", role: "tabpanel" }, tree(null, json.value, 0, this.mark))
        : h("pre", { class: "lw-body", role: "tabpanel", tabindex: 0 }, way === "hex" ? hex(raw(m)) : marked(m.body ?? new TextDecoder().decode(raw(m)), this.mark)),
    ]);
  },
};
