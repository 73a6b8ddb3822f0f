// The page: what comes from the service goes into a history, and from there to the parts of the page.

import { byId, keep, make, say } from "./dom.js";
import { Details } from "./details.js";
import { NONE, bytes, clock, milliseconds, number, rate } from "./format.js";
import { Graph } from "./graph.js";
import { History, inFlight, levelOf, waiting } from "./history.js";
import { authorization, follow } from "./stream.js";

const STATES = { running: "good", finished: "quiet", stopped: "quiet", failed: "critical" };
const history = new History();
const graph = new Graph(byId("graph"), select);
const details = new Details(byId("details"), () => select(null));
let selected = null;
let values = null; // the status with elements, while they are shown
let showsValues = false;
let drawing = false;
let lost = false; // the connection: what is shown is as it was then

function select(name) {
  const closed = selected;
  selected = name === selected ? null : name;
  render();
  if (selected === null && closed !== null) graph.nodes.get(closed)?.button.focus();
  else if (selected !== null && window.matchMedia("(max-width: 960px)").matches) byId("details").scrollIntoView({ block: "start" });
}

function soon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    render();
  });
}

function render() {
  const sample = history.last;
  if (sample === null) return;
  const { status } = sample;
  say(byId("name"), status.name);
  byId("name").title = status.name;
  const stale = lost && !sample.hasEnded;
  const state = stale ? `was ${status.state}` : status.state;
  document.title = `${status.name} · ${state}`;
  say(byId("state"), state);
  byId("state").dataset.level = stale ? "warning" : (STATES[status.state] ?? "warning");
  say(byId("uptime"), stale ? `last seen ${clock(status.now_ms)}` : status.started_ms ? `${sample.hasEnded ? "ran" : "up"} ${milliseconds(status.now_ms - status.started_ms)}` : "");
  byId("main").classList.toggle("stale", stale);
  alerts(status);
  tiles(sample);
  graph.update(sample, selected);
  details.show(selected, history);
  table(sample);
  failures(status);
  checkpoints(sample);
}

function alerts(status) {
  const found = status.error ? [["", `The job has failed: ${status.error}`]] : []; // no step has this name
  for (const step of status.steps) if (step.stuck) found.push([step.name, step.stuck]);
  keep(byId("alerts"), found, ([key]) => key, ([key]) => make("p", { class: "alert" }, make("b", {}, key === "" ? "Failed" : `${key} is stuck`), " ", make("span")), (element, [, text]) => say(element.lastElementChild, text));
}

function tiles(sample) {
  const { status, flow } = sample;
  const steps = status.steps;
  const total = (pick) => steps.reduce((sum, step) => sum + (pick(step) ?? 0), 0);
  const flowing = (is, side) => {
    const known = steps.filter(is).map((step) => flow.get(step.name)?.[side]).filter((value) => value != null);
    return known.length ? known.reduce((a, b) => a + b, 0) : null;
  };
  const read = new Set(steps.flatMap((step) => step.input_steps));
  const calls = steps.filter((step) => step.concurrency !== null);
  const lags = steps.map((step) => step.lag_ms).filter((lag) => lag !== null);
  const windows = steps.filter((step) => step.counts.windows_open !== undefined);
  const slowest = calls.map((step) => step.latency?.p99_ms).filter((value) => value != null);
  const failed = total((step) => step.counts.failed);
  const shown = [
    ["In", rate(flowing((step) => step.inputs.length === 0, "out")), "all sources"],
    ["Out", rate(flowing((step) => !read.has(step.name), "in")), "all sinks"],
    ["In flight", number(total(inFlight)), sample.hasEnded ? "when it ended" : calls.length ? `of ${number(calls.reduce((sum, step) => sum + step.concurrency, 0))} allowed` : "no calls"],
    ["Slowest p99", slowest.length ? milliseconds(Math.max(...slowest)) : NONE, "the last minute"],
    ["Watermark lag", lags.length ? milliseconds(Math.max(...lags)) : NONE, lags.length ? "the last of all steps" : "no event time"],
    ["Windows open", windows.length ? number(total((step) => step.counts.windows_open)) : NONE, windows.length ? "in all steps" : "no windows"],
    ["Failed", number(failed), rate(steps.reduce((sum, step) => sum + (flow.get(step.name)?.failed ?? 0), 0))],
    ["Checkpoint", status.checkpoint?.taken_ms ? milliseconds(status.now_ms - status.checkpoint.taken_ms) : NONE, status.checkpoint ? (status.checkpoint.failed_in_a_row ? `${status.checkpoint.failed_in_a_row} failed since` : since(sample)) : "none are kept"],
  ];
  keep(
    byId("tiles"),
    shown,
    ([label]) => label,
    ([label]) => make("div", { class: "tile" }, make("dt", {}, label), make("dd", {}, make("span", { class: "big" }), make("span", { class: "muted" }))),
    (element, [label, value, note]) => {
      const [big, small] = element.lastElementChild.children;
      say(big, value);
      say(small, note);
      const bad = (label === "Failed" && failed > 0) || (label === "Checkpoint" && status.checkpoint?.failed_in_a_row > 0);
      element.dataset.level = bad ? "warning" : "";
    },
  );
}

function table(sample) {
  keep(
    byId("steps").tBodies[0],
    sample.status.steps,
    (step) => step.name,
    (step) => {
      const cell = (kind) => make("td", kind ? { class: kind } : {});
      const button = make("button", { type: "button", class: "link", title: step.name, onclick: () => select(step.name) }, step.name);
      return make("tr", {}, make("th", { scope: "row" }, button, " ", make("span", { class: "muted" }, step.kind.replaceAll("_", " "))), make("td", {}, make("span", { class: "chip" }, make("i", { class: "dot" }), make("span"))), cell("n"), cell("n"), cell("n"), cell("n"), make("td", { class: "apart" }, make("span", { class: "meter" }, make("span", { class: "track" }, make("i")), make("span", { class: "load" }))), cell("n"), cell("n"), cell("n"));
    },
    (row, step) => {
      const flow = sample.flow.get(step.name);
      const [level, word] = levelOf(step, sample);
      const cells = row.children;
      row.dataset.level = level;
      row.dataset.step = step.name;
      row.classList.toggle("selected", step.name === selected);
      say(cells[1].querySelector(".chip > span"), word);
      cells[1].title = step.stuck ?? "";
      say(cells[2], rate(flow?.in));
      say(cells[3], rate(flow?.out));
      say(cells[4], milliseconds(step.latency?.p50_ms));
      say(cells[5], milliseconds(step.latency?.p99_ms));
      const meter = cells[6].firstElementChild;
      meter.hidden = step.concurrency === null;
      if (step.concurrency !== null) {
        meter.querySelector("i").style.width = `${Math.min(100, (100 * inFlight(step)) / step.concurrency)}%`;
        say(meter.lastElementChild, `${number(inFlight(step))} / ${number(step.concurrency)}`);
      }
      say(cells[7], number(waiting(step)));
      say(cells[8], milliseconds(step.lag_ms));
      say(cells[9], step.counts.failed === undefined ? NONE : number(step.counts.failed));
    },
  );
}

function failures(status) {
  const steps = (showsValues && values ? values : status).steps;
  const all = steps.flatMap((step) => step.failures.map((failure, at) => ({ ...failure, step: step.name, at })));
  all.sort((a, b) => b.at_ms - a.at_ms || b.at - a.at);
  const total = status.steps.reduce((sum, step) => sum + (step.counts.failed ?? 0), 0);
  say(byId("failed-count"), number(Math.max(total, all.length)));
  byId("failed-count").dataset.level = all.length ? "warning" : "";
  byId("failed-none").hidden = all.length > 0;
  byId("failed-list").replaceChildren(
    ...all.slice(0, 50).map((failure) =>
      make("li", {}, make("span", { class: "when" }, clock(failure.at_ms)), make("b", {}, failure.step), make("span", { class: "error" }, failure.error), failure.element === null ? make("span", { class: "hidden-value" }, "element hidden") : make("code", {}, failure.element)),
    ),
  );
}

// What a length of time up to the last look is to be read as.
function since(sample) {
  return sample.hasEnded ? "before the end" : "ago";
}

function checkpoints(sample) {
  const { status } = sample;
  const last = status.checkpoint;
  if (last === null) {
    byId("checkpoints").replaceChildren(make("p", { class: "muted" }, "This job keeps none: what is in flight is lost if the process dies."));
    return;
  }
  const facts = [
    ["number", last.number ? number(last.number) : NONE],
    ["taken", last.taken_ms ? `${clock(last.taken_ms)}, ${milliseconds(status.now_ms - last.taken_ms)} ${since(sample)}` : "not yet"],
    ["safe after", milliseconds(last.duration_ms)],
    ["size", bytes(last.size)],
    ["failed since", number(last.failed_in_a_row)],
  ];
  byId("checkpoints").replaceChildren(make("dl", { class: "facts", "data-level": last.failed_in_a_row ? "warning" : "" }, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])));
}

// ---------------------------------------------------------------- elements, if they are asked for

async function fetchValues() {
  if (!showsValues) return;
  const reply = await fetch("status?values=true", { headers: authorization(token()), cache: "no-store" }).catch(() => null);
  if (reply?.ok) {
    values = await reply.json();
    soon();
  }
}

byId("values").addEventListener("click", () => {
  showsValues = !showsValues;
  values = null;
  byId("values").setAttribute("aria-pressed", String(showsValues));
  say(byId("values"), showsValues ? "Hide values" : "Show values");
  soon();
  fetchValues();
});

// ---------------------------------------------------------------- light and dark

const THEMES = ["auto", "light", "dark"];

function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  say(byId("theme"), `Theme: ${name}`);
  return name;
}

let chosen = theme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto");
byId("theme").addEventListener("click", () => {
  chosen = theme(THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length]);
  localStorage.setItem("theme", chosen);
});

// ---------------------------------------------------------------- the token, and the stream

const KEY = `asyncstream token ${location.pathname}`;
const given = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B")).get("token"); // where "+" is a space
if (given) {
  sessionStorage.setItem(KEY, given);
  window.history.replaceState(null, "", location.pathname + location.search);
}

function token() {
  return sessionStorage.getItem(KEY);
}

function unlocked() {
  const dialog = byId("login");
  say(byId("login-why"), token() ? "This is not the token of this page." : "This page is for those who know its token.");
  sessionStorage.removeItem(KEY);
  dialog.showModal();
  byId("login-form").onsubmit = () => {
    sessionStorage.setItem(KEY, byId("token").value);
    byId("token").value = "";
  };
  // not at the submit, when it is still open and could not be opened anew
  return new Promise((resolve) => (dialog.onclose = resolve));
}

byId("login").addEventListener("cancel", (event) => event.preventDefault());

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && selected !== null && !byId("login").open) select(selected);
});

const LIVE = { live: "live", waiting: "connection lost, trying again", over: "the job is over", locked: "locked" };

follow("status/events", {
  token,
  unlocked,
  state(name) {
    lost = name !== "live" && name !== "over";
    soon();
    byId("live").dataset.live = name === "live" ? "yes" : "no";
    say(byId("live"), LIVE[name]);
  },
  event(data, kind) {
    if (kind === "message") history.add(JSON.parse(data));
  },
  pause() {
    soon();
    fetchValues();
  },
});
