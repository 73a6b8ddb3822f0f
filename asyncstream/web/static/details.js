// What is known of one step, over time.

import { LineChart } from "./charts.js";
import { make, say } from "./dom.js";
import { milliseconds, number, rate, words } from "./format.js";
import { inFlight, levelOf } from "./history.js";

const PLACES = [
  ["inbox", "accepted, not begun"],
  ["limit", "for a rate limit or a breaker"],
  ["call", "in a call or a write"],
  ["order", "finished, for their turn"],
  ["downstream", "for room behind this step"],
];

const BREAKER = ["closed", "half open", "open"];

export class Details {
  constructor(section, close) {
    this.section = section;
    this.close = close;
    this.shape = null;
  }

  show(name, history) {
    const step = name === null ? undefined : history.last?.steps.get(name);
    this.section.hidden = step === undefined;
    if (step === undefined) {
      this.shape = null;
      return;
    }
    const shape = JSON.stringify([step.name, step.kind, ...Object.values(has(step))]);
    if (this.shape !== shape) this.build(step);
    this.shape = shape;
    this.update(step, history);
  }

  build(step) {
    const { calls, windows, watermark } = has(step);
    const holds = this.section.contains(document.activeElement);
    this.charts = [];
    const chart = (title, lines, format) => {
      const made = new LineChart(title, lines, format);
      this.charts.push([made, lines.map((line) => line.pick)]);
      return made.element;
    };
    const charts = [
      chart("Throughput", [{ label: "in", tone: "soft", pick: (s, sample) => sample.flow.get(s.name)?.in }, { label: "out", tone: "main", pick: (s, sample) => sample.flow.get(s.name)?.out }], rate),
    ];
    if (calls) {
      charts.push(
        chart("Latency of calls", [{ label: "p50", tone: "soft", pick: (s) => s.latency?.p50_ms }, { label: "p90", tone: "middle", pick: (s) => s.latency?.p90_ms }, { label: "p99", tone: "main", pick: (s) => s.latency?.p99_ms }], milliseconds),
        chart("Calls in flight", [{ label: "running", tone: "main", pick: inFlight }, { label: "allowed", tone: "limit", dashed: true, pick: (s) => s.counts.concurrency_limit ?? s.concurrency }], number),
      );
    }
    if (windows) charts.push(chart("Windows open", [{ label: "open", tone: "main", pick: (s) => s.counts.windows_open }], number));
    if (watermark) charts.push(chart("Watermark lag", [{ label: "lag", tone: "main", pick: (s) => s.lag_ms }], milliseconds));
    this.badge = make("span", { class: "badge" });
    this.why = make("p", { class: "why" });
    this.places = make("div", { class: "places" });
    this.facts = make("dl", { class: "facts wide" });
    this.section.replaceChildren(
      make("div", { class: "card-head" }, make("h2", { id: "details-title" }, step.name), this.badge, make("button", { type: "button", class: "close", "aria-label": `Close the details of ${step.name}`, onclick: this.close }, "Close")),
      this.why,
      make("div", { class: "charts" }, ...charts),
      make(
        "div",
        { class: "below" },
        make("div", {}, make("h3", {}, "Where elements wait"), this.places),
        make("div", {}, make("h3", {}, "Figures"), this.facts),
      ),
    );
    if (holds) this.section.querySelector(".close").focus(); // which was just replaced
  }

  update(step, history) {
    const [level, word] = levelOf(step, history.last);
    this.badge.dataset.level = level;
    say(this.badge, word);
    say(this.why, step.stuck ?? (step.held_back_by ? `Held back by ${step.held_back_by}.` : ""));
    this.why.dataset.level = level;
    this.why.hidden = this.why.textContent === "";
    for (const [chart, picks] of this.charts) chart.update(picks.map((pick) => history.series(step.name, pick)));
    this.places.replaceChildren(...where(step));
    this.facts.replaceChildren(...facts(step).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  }
}

// What there is to draw of a step, which may be known later, and be another thing in the next job.
function has(step) {
  return { calls: step.concurrency !== null, windows: "windows_open" in step.counts, watermark: step.watermark_ms !== null };
}

function where(step) {
  const counts = PLACES.map(([place, meaning]) => [place, meaning, step.waiting[place] ?? 0]);
  const most = Math.max(1, ...counts.map(([, , count]) => count));
  return counts.map(([place, meaning, count]) => {
    const fill = make("i");
    fill.style.width = `${(100 * count) / most}%`;
    return make("div", { class: "place", title: meaning }, make("span", {}, place), make("span", { class: "track" }, fill), make("b", {}, number(count)), make("span", { class: "muted" }, meaning));
  });
}

function facts(step) {
  const found = [["kind", words(step.kind)]];
  if (step.inputs.length) found.push(["reads", step.inputs.join(", ")]);
  if (step.watermark_ms !== null) found.push(["watermark", watermark(step.watermark_ms)]);
  if (step.oldest_call) found.push(["longest call", milliseconds(step.oldest_call.seconds * 1000) + (step.oldest_call.element === null ? "" : ` on ${step.oldest_call.element}`)]);
  for (const [name, value] of Object.entries(step.settings ?? {})) found.push([words(name), value]);
  for (const [name, value] of Object.entries(step.counts)) {
    found.push([words(name), name === "circuit_state" ? (BREAKER[value] ?? String(value)) : number(value)]);
  }
  return found;
}

function watermark(ms) {
  const time = new Date(ms);
  return Number.isNaN(time.getTime()) ? "the end" : time.toISOString().replace("T", " ").replace(".000Z", "Z");
}
