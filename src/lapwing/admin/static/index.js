// Shared by the components: elements, formats of numbers and times, saving of files, parameters of the address.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const two = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

export const h = (...args) => Vue.h(...args);
export const icon = (name) => h("i", { class: "material-icons", "aria-hidden": "true" }, name);

export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));

export function rate(n) {
  if (n === null || n === undefined) return "–";
  if (!n || n <= 0) return "0";
  if (n < 1) return two.format(n);
  return n < 10 ? one.format(n) : whole.format(n);
}

export function short(n) {
  const steps = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  for (const [size, unit] of steps) if (Math.abs(n) >= size) return one.format(n / size).replace(".0", "") + unit;
  return Math.abs(n) < 10 && n % 1 ? one.format(n) : whole.format(n);
}

export function duration(s) {
  if (s === null || s === undefined) return "";
  if (s === 0) return "0s";
  if (s < 0.001) return `${Math.round(s * 1e6)}µs`;
  if (s < 1) return `${one.format(s * 1e3).replace(".0", "")}ms`;
  if (s < 60) return `${one.format(s).replace(".0", "")}s`;
  const t = Math.floor(s);
  const pair = (a, u, b, v) => (b ? `${a}${u} ${b}${v}` : `${a}${u}`);
  if (t < 3600) return pair(Math.floor(t / 60), "m", t % 60, "s");
  if (t < 86400) return pair(Math.floor(t / 3600), "h", Math.floor((t % 3600) / 60), "m");
  return pair(Math.floor(t / 86400), "d", Math.floor((t % 86400) / 3600), "h");
}

export function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return unit === "B" || n >= 10 ? `${whole.format(n)} ${unit}` : `${one.format(n)} ${unit}`;
    n /= 1024;
  }
  return `${one.format(n)} TiB`;
}

export function percent(share) {
  const n = share * 100;
  return `${n && n < 10 ? (n < 0.1 ? two : one).format(n).replace(/\.0$/, "") : whole.format(n)} %`;
}

// Times are in UTC everywhere, as in the daemons' logs and in what one may ask for.
export function moment(seconds, millis = false) {
  if (!seconds) return "";
  const text = new Date(seconds * 1000).toISOString();
  return `${text.slice(0, 10)} ${text.slice(11, millis ? 23 : 19)}`;
}

// Times of today without the date.
export function clock(seconds) {
  const text = moment(seconds, true);
  return text.slice(0, 10) === moment(Date.now() / 1000).slice(0, 10) ? text.slice(11) : text;
}

export function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A spreadsheet runs text that begins with one of these characters; names come from anybody, so it is quoted.
export const csvCell = (text) => {
  const safe = /^[=+\-@\t\r]/.test(text) && !/^-?[\d.]+$/.test(text) ? "'" + text : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};

export const fromAddress = (key) => new URLSearchParams(location.search).get(key);

export function toAddress(key, value) {
  const params = new URLSearchParams(location.search);
  if (value) params.set(key, value);
  else params.delete(key);
  const query = params.toString();
  history.replaceState(history.state, "", location.pathname + (query ? "?" + query : "") + location.hash);
}

export const colour = (name) => getComputedStyle(document.body).getPropertyValue("--" + name).trim();

// The text in pieces, with every occurrence of `wanted` in a <mark>, whatever its case.
export function marked(text, wanted) {
  if (!wanted || !text) return text;
  const low = text.toLowerCase(), sought = wanted.toLowerCase(), pieces = [];
  let at = 0;
  for (let hit = low.indexOf(sought); hit >= 0 && pieces.length < 400; hit = low.indexOf(sought, at)) {
    pieces.push(text.slice(at, hit), h("mark", text.slice(hit, hit + sought.length)));
    at = hit + sought.length;
  }
  return [...pieces, text.slice(at)];
}
