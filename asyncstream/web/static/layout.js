// Where the steps of a graph stand: in layers, each behind all that it reads, with few crossings.

const SWEEPS = 6;

// `nodes` in topological order, `edges` as {from, to}. Gives {layers, place}: for each node its layer and its
// position in it; edges over several layers bend around what stands between, by way of `bends`.
export function layered(nodes, edges) {
  const layer = new Map();
  for (const node of nodes) {
    const before = edges.filter((edge) => edge.to === node).map((edge) => (layer.get(edge.from) ?? -1) + 1);
    layer.set(node, Math.max(0, ...before));
  }
  // a source stands right before the first that reads it, so that no edge is longer than it must be
  for (const node of nodes) {
    if (edges.some((edge) => edge.to === node)) continue;
    const behind = edges.filter((edge) => edge.from === node).map((edge) => layer.get(edge.to) - 1);
    if (behind.length) layer.set(node, Math.min(...behind));
  }
  const rows = [];
  const put = (item, at) => {
    rows[at] ??= [];
    rows[at].push(item);
  };
  nodes.forEach((node) => put(node, layer.get(node)));
  const links = [];
  const bends = new Map();
  edges.forEach((edge, index) => {
    let previous = edge.from;
    const way = [];
    for (let at = layer.get(edge.from) + 1; at < layer.get(edge.to); at++) {
      const bend = `bend ${index} ${at}`;
      put(bend, at);
      links.push([previous, bend]);
      way.push(bend);
      previous = bend;
    }
    links.push([previous, edge.to]);
    bends.set(edge, way);
  });
  order(rows, links);
  const place = new Map();
  rows.forEach((row, at) => row.forEach((item, position) => place.set(item, { layer: at, position, of: row.length })));
  return { rows, place, bends };
}

// Puts each row in the order of the middle of its neighbours in the row before, then behind, and so on.
function order(rows, links) {
  const before = new Map();
  const behind = new Map();
  const add = (map, key, value) => map.set(key, [...(map.get(key) ?? []), value]);
  for (const [from, to] of links) {
    add(before, to, from);
    add(behind, from, to);
  }
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const down = sweep % 2 === 0;
    const neighbours = down ? before : behind;
    const walk = down ? rows : [...rows].reverse();
    const position = new Map();
    walk.forEach((row) => {
      const middle = new Map();
      row.forEach((item, index) => {
        const near = (neighbours.get(item) ?? []).map((other) => position.get(other)).filter((p) => p !== undefined);
        middle.set(item, near.length ? near.reduce((a, b) => a + b, 0) / near.length : index);
      });
      row.sort((a, b) => middle.get(a) - middle.get(b));
      row.forEach((item, index) => position.set(item, index + (1 - row.length) / 2));
    });
  }
}
