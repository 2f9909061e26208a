// One labelled field: text, number, many lines, or a choice.
import { h } from "lapwing-ui";

export default {
  props: { label: String, kind: String, value: String, options: Array, placeholder: String, width: String, focus: Boolean, hint: String },
  emits: ["change", "enter"],
  data: () => ({ held: "" }),
  created() {
    this.held = this.value ?? "";
  },
  watch: {
    value(now) {
      this.held = now ?? "";
    },
  },
  mounted() {
    if (this.focus) this.$el.querySelector("input, textarea, select").focus();
  },
  methods: {
    changed(event) {
      this.held = event.target.value;
      this.$emit("change", this.held);
    },
    // Enter submits; in a field of many lines it is a new line, and Ctrl+Enter submits
    key(event) {
      if (event.key === "Enter" && (this.kind !== "textarea" || event.ctrlKey || event.metaKey)) this.$emit("enter", this.held);
    },
  },
  render() {
    const common = { value: this.held, placeholder: this.placeholder, onInput: this.changed, autocomplete: "off", spellcheck: "false" };
    const field = this.kind === "select"
      ? h("select", { onChange: this.changed, onKeydown: this.key }, this.options.map(([value, text]) => h("option", { value, selected: value === this.held }, text)))
      : this.kind === "textarea" ? h("textarea", { ...common, onKeydown: this.key })
      : h("input", { type: this.kind || "text", ...common, onKeydown: this.key });
    return h("label", { class: "lw-field", style: this.width ? { width: this.width } : undefined },
      [h("span", this.label), field, this.hint ? h("span", this.hint) : null]);
  },
};
