// What the server does now, from the difference of two readings of /metrics.

import { text } from "./api.js";
import { $, count, el } from "./dom.js";

const WINDOW_S = 60;
const LINE = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/;

/** Prometheus' text as {name: [[labels, value]]}. */
export function parseMetrics(page) {
  const metrics = {};
  for (const line of page.split("\n")) {
    const found = LINE.exec(line);
    if (!found) continue;
    const labels = Object.fromEntries([...(found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value]));
    (metrics[found[1]] ??= []).push([labels, Number(found[3])]);
  }
  return metrics;
}

const sum = (metrics, name, keep = () => true) =>
  (metrics[name] ?? []).filter(([labels]) => keep(labels)).reduce((total, [, value]) => total + value, 0);

const delta = (first, last, name, keep) => sum(last, name, keep) - sum(first, name, keep);

/** A quantile of what was observed between two readings of a histogram, in its unit; NaN if nothing was. */
export function quantile(first, last, name, share, keep = () => true) {
  const bounds = [...new Set((last[`${name}_bucket`] ?? []).map(([labels]) => labels.le))];
  const below = bounds.map((le) => [Number(le.replace("+Inf", "Infinity")), delta(first, last, `${name}_bucket`, (labels) => labels.le === le && keep(labels))]);
  below.sort(([one], [other]) => one - other);
  const total = below.at(-1)?.[1] ?? 0;
  if (!total) return NaN;
  let [from, before] = [0, 0];
  for (const [to, number] of below) {
    if (number >= share * total) return Number.isFinite(to) ? from + ((to - from) * (share * total - before)) / (number - before) : from;
    [from, before] = [to, number];
  }
  return NaN;
}

const number = (value, digits = 1) => (Number.isFinite(value) ? value.toFixed(digits) : "–");

/** The tiles of two readings that are `seconds` apart. */
export function tilesOf(first, last, seconds) {
  const name = "leafbeam_request_seconds";
  const ok = (labels) => labels.outcome === "ok";
  const per = (metric) => (seconds ? delta(first, last, metric) / seconds : NaN);
  const batches = delta(first, last, "leafbeam_batch_size_count");
  const version = last.leafbeam_index_info?.[0]?.[0].version ?? "–";
  return {
    "requests a second": number(per("leafbeam_requests_total")),
    "p50": `${number(1e3 * quantile(first, last, name, 0.5, ok))} ms`,
    "p99": `${number(1e3 * quantile(first, last, name, 0.99, ok))} ms`,
    "requests a batch": number(delta(first, last, "leafbeam_batch_size_sum") / batches),
    "requests waiting": count(sum(last, "leafbeam_queue_length")),
    "item changes a second": number(per("leafbeam_index_changes")),
    "items": count(sum(last, "leafbeam_index_items")),
    "catalog version": version,
  };
}

/** Read /metrics every `everyMs` milliseconds while the panel is on the screen. */
export function watchServer(everyMs = 2000) {
  const readings = [];
  let visible = false;
  async function read() {
    if (!visible || document.hidden) return;
    try {
      readings.push([performance.now() / 1e3, parseMetrics(await text("/metrics"))]);
    } catch (error) {
      $("live").replaceChildren(el("div", {}, el("dt", {}, "state"), el("dd", {}, error.message)));
      return;
    }
    const [now, last] = readings.at(-1);
    while (readings.length > 2 && now - readings[0][0] > WINDOW_S) readings.shift();
    const [then, first] = readings[0];
    const tiles = Object.entries(tilesOf(first, last, now - then));
    $("live").replaceChildren(...tiles.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }
  new IntersectionObserver(([entry]) => {
    visible = entry.isIntersecting;
    read();
  }).observe($("live").parentElement);
  setInterval(read, everyMs);
}
