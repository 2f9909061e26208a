// One number that counts up smoothly from poll to poll.
import { count } from "lapwing-ui";

export default {
  props: { value: Number, rate: Number },
  data: () => ({ shown: null }),
  render() {
    const text = count(Math.floor(this.shown ?? this.value));
    return Vue.h("div", { class: "lw-counter", role: "img", "aria-label": `${count(this.value)} messages processed` },
      [...text].map((sign, i) => Vue.h("span", { key: text.length - i, class: sign === "," ? "lw-comma" : "lw-digit" }, sign)));
  },
  mounted() {
    this.shown = this.value;
    this.from = this.value;
    this.since = performance.now();
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const step = () => {
      if (this.gone) return;
      const seconds = (performance.now() - this.since) / 1000;
      const aim = this.from + Math.min(seconds, 3) * (this.rate || 0);
      this.shown = still ? this.value : Math.max(this.shown, Math.max(aim, 0));
      setTimeout(() => requestAnimationFrame(step), 80);
    };
    step();
  },
  unmounted() {
    this.gone = true;
  },
  watch: {
    value(now) {
      this.from = now;
      this.since = performance.now();
      if (now < this.shown - Math.max(50, 6 * (this.rate || 0))) this.shown = now; // restarted: begin anew
    },
  },
};
