// Shared by all pages: search, keys, the theme, the menu on a phone, choices kept in the address.
import { h, icon, moment, toAddress } from "lapwing-ui";

const THEMES = { auto: ["brightness_auto", "as the system"], light: ["light_mode", "light"], dark: ["dark_mode", "dark"] };

export default {
  props: { base: String, found: Array, sought: String, theme: String, pages: Array, user: String, logout: Boolean },
  emits: ["search", "theme", "seen"],
  data: () => ({ text: "", open: false, at: 0, going: false, entered: false, mode: "auto", lost: 0 }),
  created() {
    this.mode = this.theme;
  },
  mounted() {
    document.addEventListener("keydown", this.key);
    document.addEventListener("click", this.outside);
    document.addEventListener("visibilitychange", this.seen);
    // the library shows this element while the page has no connection; the socket itself does not exist yet
    const popup = document.getElementById("popup");
    this.connection = new MutationObserver(() => (popup.ariaHidden === "false" ? this.disconnected() : this.connected()));
    this.connection.observe(popup, { attributes: true, attributeFilter: ["aria-hidden"] });
  },
  unmounted() {
    this.connection.disconnect();
    document.removeEventListener("visibilitychange", this.seen);
    document.removeEventListener("keydown", this.key);
    document.removeEventListener("click", this.outside);
  },
  watch: {
    sought() {
      if (this.entered) this.enter(); // the results of the last input had not arrived yet
    },
  },
  methods: {
    // the page shows old figures: make it grey and show the time
    disconnected() {
      this.lost ||= Date.now() / 1000;
      document.body.classList.add("lw-cut-off");
    },
    connected() {
      this.lost = 0;
      document.body.classList.remove("lw-cut-off");
    },
    enter() {
      this.entered = this.sought !== this.text;
      if (!this.entered && this.found[this.at]) location.href = this.found[this.at][2];
    },
    seen() {
      this.$emit("seen", document.visibilityState === "visible");
    },
    key(event) {
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || event.target.isContentEditable;
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/") {
        event.preventDefault();
        this.$refs.box.focus();
      } else if (event.key === "?") this.showHelp();
      else if (event.key === "t" && !this.going) this.turn();
      else if (event.key === "Escape") document.body.classList.remove("lw-nav-open");
      else if (this.going) {
        const page = this.pages.find((p) => p[2] === event.key);
        this.going = false;
        if (page) location.href = this.base + page[1];
      } else if (event.key === "g") {
        this.going = true;
        setTimeout(() => (this.going = false), 1500);
      }
    },
    showHelp() {
      this.$refs.help.showModal();
    },
    turn() {
      const order = Object.keys(THEMES);
      this.mode = order[(order.indexOf(this.mode) + 1) % order.length];
      document.cookie = `lapwing_theme=${this.mode}; path=${this.base || "/"}; max-age=31536000; samesite=lax`;
      this.$emit("theme", this.mode);
    },
    typed(event) {
      this.text = event.target.value;
      this.at = 0;
      this.open = true;
      this.entered = false;
      this.$emit("search", this.text);
    },
    boxKey(event) {
      if (event.key === "ArrowDown") this.at = Math.min(this.at + 1, this.found.length - 1);
      else if (event.key === "ArrowUp") this.at = Math.max(this.at - 1, 0);
      else if (event.key === "Enter" && this.text) this.enter();
      else if (event.key === "Escape") {
        this.open = false;
        event.target.blur();
      } else return;
      event.preventDefault();
    },
    outside(event) {
      const kept = event.target.closest("[data-address]");
      if (kept) toAddress(...kept.dataset.address.split("="));
      if (!this.$el.contains(event.target)) this.open = false;
      if (document.body.classList.contains("lw-nav-open") && !event.target.closest(".lw-nav, .lw-burger")) document.body.classList.remove("lw-nav-open");
    },
    search() {
      const shown = this.open && this.text && this.found.length > 0;
      const none = this.open && this.text && this.sought === this.text && !this.found.length;
      return h("div", { class: "lw-search", role: "search" }, [
        icon("search"),
        h("input", { ref: "box", type: "search", placeholder: "Search topics, channels, nodes", "aria-label": "Search topics, channels, nodes",
          role: "combobox", "aria-expanded": String(Boolean(shown)), "aria-controls": "lw-found", "aria-autocomplete": "list",
          "aria-activedescendant": shown ? "lw-found-" + this.at : undefined, autocomplete: "off", spellcheck: "false", value: this.text,
          onInput: this.typed, onFocus: () => (this.open = true), onKeydown: this.boxKey }),
        h("kbd", { "aria-hidden": "true" }, "/"),
        shown ? h("ul", { id: "lw-found", role: "listbox", class: "lw-popup" }, this.found.map(([text, kind, href], i) =>
          h("li", { id: "lw-found-" + i, role: "option", "aria-selected": String(i === this.at) }, h("a", { href, tabindex: -1 }, [h("span", text), h("span", { class: "lw-faint" }, kind)])))) : null,
        h("p", { class: none ? "lw-popup" : "lw-hidden", role: "status" }, none ? "Nothing has this name." : ""),
      ]);
    },
    dialog() {
      const row = (keys, what) => h("tr", [h("td", keys.map((k) => h("kbd", k))), h("td", what)]);
      return h("dialog", { ref: "help", class: "lw-help", "aria-label": "Keys" }, [
        h("h2", "Keys"),
        h("table", [row(["/"], "search"), row(["?"], "this help"), row(["t"], "change the theme"),
          ...this.pages.filter((p) => p[2]).map((p) => row(["g", p[2]], p[0]))]),
        h("form", { method: "dialog" }, h("button", { class: "lw-button" }, "Close")),
      ]);
    },
  },
  render() {
    const [sign, word] = THEMES[this.mode] || THEMES.auto;
    return h("div", { class: "lw-shell" }, [
      h("button", { type: "button", class: "lw-icon-button lw-burger", "aria-label": "Menu",
        onClick: () => document.body.classList.toggle("lw-nav-open") }, icon("menu")),
      this.search(),
      h("button", { type: "button", class: "lw-icon-button", "aria-label": `Theme: ${word}. Change it.`, title: `Theme: ${word} (t)`, onClick: this.turn }, icon(sign)),
      h("button", { type: "button", class: "lw-icon-button", "aria-label": "Keys and help", title: "Keys (?)", onClick: this.showHelp }, icon("help_outline")),
      this.user ? h("span", { class: "lw-user", title: "Signed in as" }, [icon("person"), h("span", this.user)]) : null,
      this.logout ? h("form", { method: "post", action: this.base + "/logout" }, h("button", { class: "lw-quiet" }, "Sign out")) : null,
      this.dialog(),
      this.lost ? h("p", { class: "lw-notice lw-error lw-lost-notice", role: "alert" },
        `nsqadmin does not answer since ${moment(this.lost).slice(11)} UTC. The figures are from then. The page connects again by itself.`) : null,
    ]);
  },
};
