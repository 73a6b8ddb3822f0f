// Server-sent events over fetch: an EventSource could not send the token.

const QUIET = 40000; // the server is never silent for longer than 15 s

// Follows `url` for ever. `on` has event(data, kind), state(text) with "live", "waiting", "over" or "locked",
// and token(), which gives the token to send, or null.
export async function follow(url, on) {
  let last = null;
  let pause = 1000;
  for (;;) {
    let outcome = "waiting";
    try {
      outcome = await once(url, last, on, (id) => {
        last = id;
        pause = 1000;
      });
    } catch {
      // the network, or a server that is being replaced: try again
    }
    on.state(outcome);
    if (outcome === "locked") await on.unlocked();
    else await new Promise((resolve) => setTimeout(resolve, outcome === "over" ? 5000 : pause));
    pause = Math.min(pause * 2, 8000);
  }
}

async function once(url, last, on, remember) {
  const control = new AbortController();
  // a page that is left may be kept, to come back to: its connection would count among the few to one host
  const leave = () => control.abort();
  window.addEventListener("pagehide", leave);
  let timer = setTimeout(() => control.abort(), QUIET);
  try {
    const headers = headersFor(on.token(), last);
    if (headers === null) return "locked";
    const reply = await fetch(url, { headers, cache: "no-store", signal: control.signal });
    if (reply.status === 401) return "locked";
    if (reply.status === 204) return "over";
    if (!reply.ok || !reply.body) return "waiting";
    on.state("live");
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return "waiting";
      clearTimeout(timer);
      timer = setTimeout(() => control.abort(), QUIET);
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      blocks.forEach((block) => dispatch(block, on, remember));
      on.pause();
    }
  } finally {
    clearTimeout(timer);
    window.removeEventListener("pagehide", leave);
  }
}

// null: no header can hold this token, so it is not that of the page.
function headersFor(token, last) {
  try {
    const headers = new Headers({ Accept: "text/event-stream", ...authorization(token) });
    if (last !== null) headers.set("Last-Event-ID", last);
    return headers;
  } catch {
    return null;
  }
}

function dispatch(block, on, remember) {
  const data = [];
  let kind = "message";
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon < 1) continue; // a comment
    const value = line.slice(colon + 1).replace(/^ /, "");
    const field = line.slice(0, colon);
    if (field === "data") data.push(value);
    else if (field === "id") remember(value);
    else if (field === "event") kind = value;
  }
  if (data.length) on.event(data.join("\n"), kind);
}

export function authorization(token) {
  return token ? { Authorization: `Bearer ${token}` } : {};
}
