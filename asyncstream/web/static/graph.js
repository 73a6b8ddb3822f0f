// The graph of the steps: buttons for the steps, curves between them with what flows.

import { draw, make, say } from "./dom.js";
import { milliseconds, number, rate } from "./format.js";
import { inFlight, inputsOf, levelOf, waiting } from "./history.js";
import { layered } from "./layout.js";

const NODE = { most: 196, least: 148, height: 92 };
const GAP = { most: 110, least: 48, beside: 20 };
const LABEL = 80; // pixels that the name of a side output has at least
const PAD = 14;

export class Graph {
  constructor(container, select) {
    this.container = container;
    this.select = select;
    this.shape = "";
    this.nodes = new Map();
    this.edges = [];
    new ResizeObserver(() => {
      if (this.sample) this.update(this.sample, this.selected);
    }).observe(container);
  }

  update(sample, selected) {
    this.sample = sample;
    this.selected = selected;
    const shape = JSON.stringify([this.container.clientWidth, sample.status.steps.map((step) => [step.name, step.inputs, step.input_steps])]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.build(sample);
    }
    for (const step of sample.status.steps) this.show(this.nodes.get(step.name), step, sample, selected);
    for (const edge of this.edges) this.flow(edge, sample);
  }

  build(sample) {
    const steps = sample.status.steps;
    const edges = steps.flatMap((step) => inputsOf(step).map((input) => ({ to: step.name, ...input })));
    edges.forEach((edge) => (edge.from = edge.step));
    const { rows, place, bends } = layered(steps.map((step) => step.name), edges);
    const widest = Math.max(...rows.map((row) => row.length));
    const room = this.container.clientWidth - 2 * PAD;
    const form = formFor(room, rows.length, widest);
    const [long, short] = form.lying ? [form.width, NODE.height] : [NODE.height, form.width];
    const thick = Math.max(form.lying ? 0 : room, widest * (short + GAP.beside) - GAP.beside);
    const centre = (item) => {
      const { layer, position, of } = place.get(item);
      const along = PAD + layer * (long + form.gap) + long / 2;
      const beside = PAD + thick / 2 + (position - (of - 1) / 2) * (short + GAP.beside);
      return form.lying ? { x: along, y: beside } : { x: beside, y: along };
    };
    const length = rows.length * (long + form.gap) - form.gap + 2 * PAD;
    const [width, height] = form.lying ? [length, thick + 2 * PAD] : [thick + 2 * PAD, length];
    const lines = draw("svg", { class: "edges", width, height, "aria-hidden": true });
    const board = make("div", { class: "board" }, lines);
    board.style.width = `${width}px`;
    board.style.height = `${height}px`;
    this.edges = edges.map((edge) => {
      const points = [edge.from, ...bends.get(edge), edge.to].map(centre);
      points[0] = out(points[0], form, 1);
      points[points.length - 1] = out(points.at(-1), form, -1);
      const d = curve(points, form);
      const line = draw("path", { class: "edge", d });
      const pulse = draw("path", { class: "pulse", d });
      const label = make("span", { class: "edge-rate", "aria-hidden": true });
      const middle = between(points);
      label.style.left = `${middle.x}px`;
      label.style.top = `${middle.y}px`;
      label.style.maxWidth = `${Math.max(LABEL, form.lying ? form.gap : form.width)}px`;
      lines.append(line, pulse);
      board.append(label);
      return { ...edge, line, pulse, label };
    });
    this.nodes = new Map();
    for (const step of steps) {
      const node = build(step, () => this.select(step.name));
      const { x, y } = centre(step.name);
      node.button.style.left = `${x - form.width / 2}px`;
      node.button.style.top = `${y - NODE.height / 2}px`;
      node.button.style.width = `${form.width}px`;
      node.button.style.height = `${NODE.height}px`;
      board.append(node.button);
      this.nodes.set(step.name, node);
    }
    const focused = document.activeElement?.dataset?.step;
    this.container.replaceChildren(board);
    if (focused && this.nodes.has(focused)) this.nodes.get(focused).button.focus();
  }

  show(node, step, sample, selected) {
    const flow = sample.flow.get(step.name);
    const [level, word] = levelOf(step, sample);
    node.button.dataset.level = level;
    node.button.setAttribute("aria-pressed", String(step.name === selected));
    say(node.word, level === "good" || level === "quiet" ? "" : word);
    const figures = [];
    if (flow?.out != null || flow?.in != null) figures.push(rate(flow.out ?? flow.in));
    if (step.latency) figures.push(`p99 ${milliseconds(step.latency.p99_ms)}`);
    if (step.counts.windows_open !== undefined) figures.push(`${number(step.counts.windows_open)} windows`);
    const held = waiting(step);
    if (held && step.concurrency === null) figures.push(`${number(held)} waiting`);
    say(node.figures, figures.join(" · ") || "no figures");
    node.meter.hidden = step.concurrency === null;
    if (step.concurrency !== null) {
      const running = inFlight(step);
      node.fill.style.width = `${Math.min(100, (100 * running) / step.concurrency)}%`;
      say(node.load, `${number(running)} / ${number(step.concurrency)}`);
      figures.push(`${number(running)} of ${number(step.concurrency)} calls in flight`);
    }
    const why = step.stuck ? ` ${step.stuck}` : "";
    node.button.setAttribute("aria-label", `${step.name}, ${step.kind}, ${word}.${why} ${figures.join(", ")}`);
    node.button.title = step.stuck ?? step.name;
  }

  flow(edge, sample) {
    const steps = sample.steps;
    const to = steps.get(edge.to);
    const alone = to.inputs.length === 1;
    let value = null;
    if (edge.tag === null) value = sample.flow.get(edge.step)?.out ?? null;
    else if (edge.tag === "failed") value = sample.flow.get(edge.step)?.failed ?? null;
    if (alone) value = sample.flow.get(edge.to)?.in ?? value;
    const text = value === null ? "" : rate(value);
    say(edge.label, edge.tag === null ? text : `${edge.tag}\n${text}`.trim());
    edge.label.hidden = edge.label.textContent === "";
    const [level] = levelOf(to, sample);
    const blocked = level === "critical" || (!sample.hasEnded && steps.get(edge.step)?.waiting.downstream > 0);
    const state = blocked ? "blocked" : value > 0 ? "moving" : "still";
    edge.line.setAttribute("class", `edge ${state}${edge.tag === null ? "" : " side"}`);
    edge.line.style.strokeWidth = `${1.5 + Math.min(3, Math.log10(1 + (value ?? 0)))}px`;
    edge.pulse.setAttribute("class", `pulse ${state}`);
  }
}

// From left to right where that fits, else downwards where that does, else to the right with a scroll bar.
function formFor(room, layers, widest) {
  const within = (value, { least, most }) => Math.min(most, Math.max(least, value));
  const gaps = Math.max(1, layers - 1);
  const fits = layers * NODE.least + gaps * GAP.least <= room;
  const beside = (room - (widest - 1) * GAP.beside) / widest;
  if (!fits && beside >= NODE.least - 30) return { lying: false, width: Math.min(NODE.most, beside), gap: GAP.least };
  const width = within((room - gaps * GAP.least) / layers, NODE);
  return { lying: true, width, gap: within((room - layers * width) / gaps, GAP) };
}

function build(step, select) {
  const word = make("span", { class: "word" });
  const figures = make("span", { class: "figures" });
  const fill = make("i");
  const load = make("span", { class: "load" });
  const meter = make("span", { class: "meter" }, make("span", { class: "track" }, fill), load);
  const button = make(
    "button",
    { type: "button", class: "node", "data-step": step.name, onclick: select },
    make("span", { class: "node-top" }, make("span", { class: "kind" }, step.kind.replaceAll("_", " ")), make("span", { class: "chip" }, make("i", { class: "dot" }), word)),
    make("span", { class: "node-name" }, step.name),
    figures,
    meter,
  );
  return { button, word, figures, meter, fill, load };
}

function out(point, form, side) {
  return form.lying ? { x: point.x + (side * form.width) / 2, y: point.y } : { x: point.x, y: point.y + (side * NODE.height) / 2 };
}

function curve(points, form) {
  let d = `M${points[0].x} ${points[0].y}`;
  for (let i = 1; i < points.length; i++) {
    const [a, b] = [points[i - 1], points[i]];
    const mid = form.lying ? (a.x + b.x) / 2 : (a.y + b.y) / 2;
    d += form.lying ? `C${mid} ${a.y} ${mid} ${b.y} ${b.x} ${b.y}` : `C${a.x} ${mid} ${b.x} ${mid} ${b.x} ${b.y}`;
  }
  return d;
}

function between(points) {
  const at = (points.length - 1) / 2;
  const [a, b] = [points[Math.floor(at)], points[Math.ceil(at)]];
  return a === b ? a : { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
}
