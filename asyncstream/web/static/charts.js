// Small line charts: one axis from zero, the newest on the right, figures of the moment under the pointer.

import { draw, make, say } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 132;
const LEFT = 52;
const RIGHT = 8;
const TOP = 10;
const BOTTOM = 20;

export class LineChart {
  // `lines` are {label, tone, dashed}; `format` makes a value readable.
  constructor(title, lines, format) {
    this.title = title;
    this.lines = lines;
    this.format = format;
    this.series = lines.map(() => []);
    this.at = null;
    this.legend = make("ul", { class: "chart-legend" });
    this.marks = lines.map((line) => {
      const value = make("b", {}, "–");
      this.legend.append(make("li", {}, make("i", { class: `key tone-${line.tone}${line.dashed ? " dashed" : ""}` }), line.label, " ", value));
      return value;
    });
    this.svg = draw("svg", { height: HEIGHT, role: "img", tabindex: 0, "aria-label": title });
    this.when = make("span", { class: "chart-when muted" });
    this.element = make("figure", { class: "chart" }, make("figcaption", {}, make("h3", {}, title), this.when), this.legend, this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.svg.addEventListener("blur", () => this.point(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.sizes = new ResizeObserver(() => this.paint());
    this.sizes.observe(this.element);
  }

  update(series) {
    this.series = series;
    this.paint();
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const count = this.series[0].length;
    this.at = Math.min(count - 1, Math.max(0, (this.at ?? count - 1) + step));
    this.paint();
  }

  point(x) {
    const points = this.series[0];
    if (x === null || points.length < 2) this.at = null;
    else {
      const t = this.from + ((x - LEFT) / (this.width - LEFT - RIGHT)) * (this.to - this.from);
      this.at = points.reduce((best, each, i) => (Math.abs(each.t - t) < Math.abs(points[best].t - t) ? i : best), 0);
    }
    this.paint();
  }

  paint() {
    const width = this.element.clientWidth;
    if (width < 80) return;
    this.width = width;
    const points = this.series[0];
    this.to = points.at(-1)?.t ?? 0;
    this.from = Math.min(points[0]?.t ?? 0, this.to - 60000);
    const values = this.series.flat().map((each) => each.value).filter((value) => value !== null);
    const ticks = scale(Math.max(0, ...values));
    const top = ticks.at(-1);
    const x = (t) => LEFT + ((t - this.from) / (this.to - this.from || 1)) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    const parts = ticks.map((tick) =>
      draw("g", { class: "grid" }, draw("line", { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }), draw("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, this.format(tick))),
    );
    const span = (this.to - this.from) / 1000;
    parts.push(
      draw("text", { class: "axis", x: LEFT, y: HEIGHT - 4 }, span < 120 ? `${Math.round(span)} s ago` : `${Math.round(span / 60)} min ago`),
      draw("text", { class: "axis", x: width - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, "now"),
    );
    this.series.forEach((series, index) => {
      const { tone, dashed } = this.lines[index];
      parts.push(draw("path", { class: `line tone-${tone}${dashed ? " dashed" : ""}`, d: path(series, x, y) }));
    });
    if (!values.length) parts.push(draw("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "nothing measured yet"));
    const at = this.at === null ? points.length - 1 : Math.min(this.at, points.length - 1);
    if (points.length) {
      if (this.at !== null) parts.push(draw("line", { class: "cross", x1: x(points[at].t), x2: x(points[at].t), y1: TOP, y2: HEIGHT - BOTTOM }));
      this.series.forEach((series, index) => {
        const value = series[at]?.value ?? null;
        if (value !== null && !this.lines[index].dashed) parts.push(draw("circle", { class: `end tone-${this.lines[index].tone}`, cx: x(series[at].t), cy: y(value), r: 3.5 }));
      });
    }
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren(...parts);
    this.tell(at);
  }

  // The figures of a moment, in the legend, and for who hears the chart.
  tell(at) {
    const shown = this.series.map((series) => series[at]?.value ?? null);
    shown.forEach((value, index) => say(this.marks[index], value === null ? "–" : this.format(value)));
    say(this.when, this.at === null || !this.series[0][at] ? "" : clock(this.series[0][at].t));
    const heard = this.lines.map((line, index) => `${line.label} ${shown[index] === null ? "unknown" : this.format(shown[index])}`);
    this.svg.setAttribute("aria-label", `${this.title}: ${heard.join(", ")}. Arrow keys go through time.`);
  }
}

// Round numbers from zero to above `most`.
function scale(most) {
  if (most <= 0) return [0, 1];
  const rough = most / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const ticks = [];
  for (let tick = 0; ticks.length < 2 || ticks.at(-1) < most; tick++) ticks.push(tick * step);
  return ticks;
}

function path(series, x, y) {
  let d = "";
  let pen = "M";
  for (const { t, value } of series) {
    if (value === null) pen = "M";
    else {
      d += `${pen}${x(t).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    }
  }
  return d;
}
