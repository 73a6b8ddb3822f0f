// What was seen, and what follows from it: rates, the state of a step, where elements are.

const KEEP = 900; // samples, one a second

const OVER = 2900; // milliseconds that a rate is the mean of, or less in the beginning

// A job in such a state does nothing any more: nothing flows, and nothing is as long ago as it was.
const ENDED = new Set(["finished", "stopped", "failed"]);

// Steps of these kinds give one element for each that they get, unless one fails.
const ONE_TO_ONE = new Set(["map", "event_time", "key_by", "union", "async_map", "thread_map"]);

export class History {
  constructor() {
    this.samples = [];
  }

  get last() {
    return this.samples.at(-1) ?? null;
  }

  // Adds a status; one of another job begins a new history.
  add(status) {
    const last = this.last;
    if (last && (last.status.started_ms !== status.started_ms || last.status.now_ms > status.now_ms)) {
      this.samples = [];
    }
    const steps = new Map(status.steps.map((step) => [step.name, step]));
    const sample = { t: status.now_ms, status, steps, flow: new Map(), hasEnded: ENDED.has(status.state) };
    if (!sample.hasEnded) sample.flow = flows(sample, this.before(sample.t - OVER) ?? this.samples[0] ?? null);
    this.samples.push(sample);
    if (this.samples.length > KEEP) this.samples.shift();
  }

  // The newest sample that is not younger than `t`: what a rate is measured against.
  before(t) {
    for (let i = this.samples.length - 1; i >= 0; i--) if (this.samples[i].t <= t) return this.samples[i];
    return null;
  }

  // What was measured of one step: [{t, value}], where value may be null.
  series(name, pick) {
    return this.samples.map((sample) => {
      const step = sample.steps.get(name);
      const value = step === undefined ? null : pick(step, sample);
      return { t: sample.t, value: value ?? null };
    });
  }
}

// The steps that a step reads, and by which of their side outputs: "price.failed", where names and outputs may have
// dots, and another step may be called that.
export function inputsOf(step) {
  return step.inputs.map((text, i) => {
    const name = step.input_steps[i];
    return { step: name, tag: text === name ? null : text.slice(name.length + 1) };
  });
}

// Elements a second into and out of each step. What no counter tells, its neighbours may: what a step gives, the
// one behind it gets, if that one reads nothing else.
function flows(sample, before) {
  const found = new Map();
  if (before === null) return found;
  const seconds = (sample.t - before.t) / 1000;
  const grown = (step, ...names) => {
    const old = before.steps.get(step.name);
    const known = names.find((name) => name in step.counts);
    if (known === undefined || old === undefined) return null;
    return Math.max(0, (step.counts[known] - (old.counts[known] ?? 0)) / seconds);
  };
  const inputs = new Map();
  const readers = new Map();
  for (const step of sample.status.steps) {
    found.set(step.name, {
      in: grown(step, "elements_in", "written"),
      out: grown(step, "results_out", "elements_out", "read"),
      failed: grown(step, "failed"),
    });
    inputs.set(step.name, inputsOf(step));
    for (const input of inputs.get(step.name)) {
      if (!readers.has(input.step)) readers.set(input.step, []);
      if (input.tag === null) readers.get(input.step).push(step.name);
    }
  }
  const across = (step) => {
    const flow = found.get(step.name);
    if (!ONE_TO_ONE.has(step.kind)) return;
    flow.in ??= flow.out;
    flow.out ??= flow.in;
  };
  const forwards = (step) => {
    const from = inputs.get(step.name);
    const flow = found.get(step.name);
    if (flow.in === null && from.length && from.every(({ step: name, tag }) => tag === null && found.get(name)?.out != null)) {
      flow.in = from.reduce((sum, { step: name }) => sum + found.get(name).out, 0);
    }
    across(step);
  };
  const backwards = (step) => {
    const flow = found.get(step.name);
    across(step);
    const from = inputs.get(step.name);
    if (flow.in !== null && from.length === 1 && from[0].tag === null) found.get(from[0].step).out ??= flow.in;
    if (flow.out === null) {
      const known = (readers.get(step.name) ?? []).find((name) => inputs.get(name).length === 1 && found.get(name).in !== null);
      if (known !== undefined) flow.out = found.get(known).in;
    }
  };
  const { steps } = sample.status;
  steps.forEach(forwards);
  [...steps].reverse().forEach(backwards);
  steps.forEach(forwards); // with what is known now of the steps before
  return found;
}

// How a step stands: [level, word], where level is good, quiet, warning or critical.
export function levelOf(step, sample) {
  if (sample.hasEnded) return step.name === sample.status.failed_step ? ["critical", "failed"] : ["quiet", "ended"];
  const flow = sample.flow.get(step.name);
  if (step.stuck) return ["critical", "stuck"];
  if (step.counts.circuit_state === 2) return ["warning", "breaker open"];
  if (step.counts.circuit_state === 1) return ["warning", "breaker half open"];
  if (step.waiting.downstream > 0) return ["warning", "held back"];
  if (step.idle) return ["quiet", "idle"];
  const moves = (flow?.in ?? 0) + (flow?.out ?? 0) > 0 || inFlight(step) > 0;
  if (!moves && step.held_back_by) return ["warning", "held back"];
  if (flow && flow.in === null && flow.out === null) return ["quiet", "no figures"]; // between others like it: it may run
  return moves ? ["good", "running"] : ["quiet", "quiet"];
}

export function inFlight(step) {
  return step.counts.running ?? step.waiting.call ?? 0;
}

export function waiting(step) {
  return Object.entries(step.waiting).reduce((sum, [place, count]) => (place === "call" ? sum : sum + count), 0);
}
