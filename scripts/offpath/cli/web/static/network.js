// Hosts, switches and aggregation trees, drawn in levels: hosts at the bottom.

import { clean } from "/static/words.js";

const SVG = "http://www.w3.org/2000/svg";
const ROW = 84;
const LEAST = 74;
const MOST_TREES = 24;

function made(tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text) element.textContent = text;
  return element;
}

/** Draw into `place`. trees, jobs: rows of the controller; switches: connected or not, by name. */
export function draw(place, network, trees, jobs, switches, colour) {
  const { nodes, links } = network;
  if (!nodes.length) {
    place.replaceChildren();
    return;
  }
  const levels = new Map();
  nodes.forEach(([, level], n) => levels.set(level, [...(levels.get(level) ?? []), n]));
  const order = [...levels.keys()].sort((a, b) => b - a);
  const width = Math.max(480, LEAST * Math.min(40, Math.max(...[...levels.values()].map((each) => each.length))));
  const height = ROW * order.length;
  const at = new Map();
  order.forEach((level, row) => {
    const members = levels.get(level);
    members.forEach((node, n) => at.set(node, { x: ((n + 0.5) * width) / members.length, y: row * ROW + 30 }));
  });
  const svg = made("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Hosts, switches and aggregation trees. The tables below have the same data." });
  for (const [a, b] of links) svg.append(line(at.get(a), at.get(b), "link"));
  const number = new Map(nodes.map(([name], n) => [name, n]));
  const hosts = new Map(jobs.map((job) => [job.job, job.hosts]));
  trees.slice(0, MOST_TREES).forEach((tree, n) => paint(svg, tree, hosts.get(tree.job) ?? [], { number, at, links, nodes }, colour(tree.job), n));
  const roots = new Set(trees.map((tree) => tree.root));
  nodes.forEach(([name, level], n) => {
    const { x, y } = at.get(n);
    const lost = switches[name] === false ? " lost" : "";
    const kind = `node${roots.has(name) ? " root" : ""}${lost}`;
    if (level === 0) svg.append(made("circle", { cx: x, cy: y, r: 9, class: kind }));
    else svg.append(made("rect", { x: x - 16, y: y - 10, width: 32, height: 20, rx: 4, class: kind }));
    const label = made("text", { x, y: level === 0 ? y + 24 : y - 14, "text-anchor": "middle" }, clean(name).slice(0, 14));
    label.append(made("title", {}, `${clean(name)}${lost ? ": not connected" : ""}`));
    svg.append(label);
  });
  place.replaceChildren(svg);
}

function line(a, b, kind, shift = 0) {
  return made("line", { x1: a.x + shift, y1: a.y, x2: b.x + shift, y2: b.y, class: kind });
}

/** A tree's links: those of the topology between its switches, and from a job's hosts up to them. */
function paint(svg, tree, hosts, { number, at, links, nodes }, colour, n) {
  const mine = new Set(tree.switches.map((name) => number.get(name)));
  const leaves = new Set(hosts.map((name) => number.get(name)));
  const shift = ((n % 5) - 2) * 4;
  const group = made("g", {});
  group.append(made("title", {}, `${clean(tree.job)}: ${clean(tree.why)}`));
  for (const [a, b] of links) {
    const isUp = nodes[a][1] !== nodes[b][1];
    if (isUp && mine.has(b) && (mine.has(a) || leaves.has(a))) {
      const drawn = line(at.get(a), at.get(b), tree.is_granted ? "tree" : "tree planned", shift);
      drawn.style.setProperty("stroke", colour);
      group.append(drawn);
    }
  }
  svg.append(group);
}
