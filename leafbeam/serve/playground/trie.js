// The beams of two searches, with and without rules, as one drawing of the trie: a column for each level.

import { count, el, svg, titleOf } from "./dom.js";

const MAX_DRAWN = 14; // beams of one search at one level
const WIDTH = 900;
const ROW = 19;
const TOP = 34;

/** The prefixes of a search: for each level [{path, parent, code, score, num_sids, pass}], best first. */
function prefixes(levels) {
  const all = [];
  for (const { codes, parents, scores, num_sids, passes } of levels) {
    const before = all.at(-1);
    all.push(
      codes.map((code, beam) => {
        const parent = before ? before[parents[beam]].path : "";
        return { path: `${parent}/${code}`, parent, code, score: scores[beam], num_sids: num_sids[beam], pass: passes[beam] };
      }),
    );
  }
  return all;
}

/** The nodes to draw: the best prefixes of each level, and all that the best of the last one came through. */
function merged(searches) {
  const nodes = new Map();
  for (const [kind, levels] of Object.entries(searches)) {
    const all = prefixes(levels);
    const wanted = new Set();
    for (let level = all.length - 1; level >= 0; level--) {
      all[level].forEach((node, rank) => {
        if (rank >= MAX_DRAWN && !wanted.has(node.path)) return;
        wanted.add(node.parent);
        const known = nodes.get(node.path);
        if (known) known.kind = "both";
        else nodes.set(node.path, { ...node, level, kind });
      });
    }
  }
  return nodes;
}

/** The nodes of each level, in an order in which no two edges cross. */
function columnsOf(nodes, numLevels) {
  const children = new Map();
  for (const node of nodes.values()) children.set(node.parent, [...(children.get(node.parent) ?? []), node]);
  const columns = Array.from({ length: numLevels }, () => []);
  const visit = (path) => {
    const below = (children.get(path) ?? []).sort((one, other) => other.score - one.score);
    for (const node of below) {
      columns[node.level].push(node);
      visit(node.path);
    }
  };
  visit("");
  return columns;
}

/**
 * Draw into `frame`. found: items of both answers as [{item, codes, broken}]. Returns the number of levels.
 */
export function drawTrie(frame, levelsWith, levelsWithout, found) {
  const searches = levelsWithout ? { with: levelsWith, without: levelsWithout } : { with: levelsWith };
  const numLevels = Math.max(...Object.values(searches).map((levels) => levels.length));
  if (!numLevels) {
    frame.replaceChildren(el("p", { class: "muted" }, "No search ran: the item memory answered, or no item is allowed."));
    return 0;
  }
  const columns = columnsOf(merged(searches), numLevels);
  const height = TOP + ROW * Math.max(...columns.map((column) => column.length)) + 10;
  const step = (WIDTH - 290) / numLevels;
  const middle = (TOP + height) / 2;
  const places = new Map([["", { x: 16, y: middle }]]);
  const edges = [];
  const dots = [svg("circle", { cx: 16, cy: middle, r: 5 })];
  columns.forEach((column, level) => {
    const spread = (height - TOP) / column.length;
    column.forEach((node, row) => {
      const place = { x: 16 + step * (level + 1), y: TOP + spread * (row + 0.5) };
      const from = places.get(node.parent);
      places.set(node.path, place);
      const half = (from.x + place.x) / 2;
      const shown = { class: node.pass > 1 ? `${node.kind} reopened` : node.kind, "data-level": level + 1 };
      edges.push(svg("path", { ...shown, d: `M${from.x} ${from.y}C${half} ${from.y} ${half} ${place.y} ${place.x} ${place.y}` }));
      const radius = level + 1 === numLevels ? 4 : 2.5 + 1.4 * Math.log10(1 + node.num_sids);
      const title = `${node.path.slice(1).replaceAll("/", " › ")}: log probability ${node.score.toFixed(2)}, ${count(node.num_sids)} IDs below${node.pass > 1 ? `, kept from pass ${node.pass} on` : ""}`;
      dots.push(svg("circle", { ...shown, cx: place.x, cy: place.y, r: radius }, svg("title", {}, title)));
      if (level + 1 === numLevels) dots.push(leafLabel(node, place, found));
      else dots.push(svg("text", { x: place.x + radius + 2, y: place.y - 3, "data-level": level + 1 }, String(node.code)));
    });
  });
  const heads = columns.map((column, level) =>
    svg("text", { class: "head", x: 16 + step * (level + 1), y: 14, "text-anchor": "middle", "data-level": level + 1 }, headOf(searches, level)),
  );
  const label = `The trie's levels from left to right, with the beams of ${levelsWithout ? "both searches" : "the search"}; the table below has the same`;
  frame.replaceChildren(
    svg("svg", { class: "trie", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label }, ...edges, ...dots, ...heads),
  );
  return numLevels;
}

function headOf(searches, level) {
  const kept = Object.values(searches).map((levels) => levels[level]?.codes.length ?? 0);
  return `level ${level + 1}, beams: ${kept.join(" and ")}`;
}

function leafLabel(node, place, found) {
  const here = found.filter(({ codes }) => `/${codes.join("/")}/`.startsWith(`${node.path}/`));
  const wrong = here.length > 0 && here.every((one) => one.broken);
  const first = here.length ? `${wrong ? "✗ " : ""}${titleOf(here[0].item)}` : String(node.code);
  const name = first.length > 36 ? `${first.slice(0, 35)}…` : first;
  const more = here.length > 1 ? ` +${here.length - 1}` : "";
  return svg("text", { x: place.x + 9, y: place.y + 4, class: wrong ? "broken" : "", "data-level": node.level + 1 }, name + more);
}

/** Show the first levels of a drawing only. */
export function showLevels(frame, shown) {
  for (const part of frame.querySelectorAll("[data-level]")) part.classList.toggle("later", Number(part.dataset.level) > shown);
}

/** The beams of one search as a table. */
export function tableOf(caption, levels) {
  const rows = prefixes(levels).flatMap((beams, level) =>
    beams.map((beam, rank) =>
      el(
        "tr",
        {},
        el("td", {}, String(level + 1)),
        el("td", {}, String(rank + 1)),
        el("td", {}, beam.path.slice(1).replaceAll("/", " › ")),
        el("td", {}, beam.score.toFixed(2)),
        el("td", {}, count(beam.num_sids)),
        el("td", {}, String(beam.pass)),
      ),
    ),
  );
  const heads = ["level", "rank", "prefix", "log probability", "IDs below", "pass"].map((name) => el("th", { scope: "col" }, name));
  return el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows));
}
