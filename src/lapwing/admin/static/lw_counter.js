// One number that counts up smoothly: it reaches the value of the last poll by the time of the next one.
import { count, h } from "lapwing-ui";

const SECONDS = 2;

export default {
  props: { value: Number },
  data: () => ({ shown: 0 }),
  render() {
    return h("div", { class: "lw-counter", role: "img", "aria-label": `${count(this.value)} messages processed` }, count(Math.floor(this.shown)));
  },
  created() {
    this.shown = this.from = this.value ?? 0;
    this.since = performance.now();
  },
  mounted() {
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const step = () => {
      if (this.gone) return;
      const part = Math.min(1, (performance.now() - this.since) / 1000 / SECONDS);
      this.shown = still || this.value < this.from ? this.value : this.from + (this.value - this.from) * part;
      setTimeout(() => requestAnimationFrame(step), this.shown === this.value ? 250 : 60);
    };
    step();
  },
  unmounted() {
    this.gone = true;
  },
  watch: {
    value() {
      this.from = this.shown;
      this.since = performance.now();
    },
  },
};
