// Answers as cards: what was recommended, why, and what the rules forbid.

import { $, el, factsOf, titleOf } from "./dom.js";
import { pictureOf } from "./pictures.js";

const CHANNELS = { model: "the model", transition: "users who took it after", text: "a text like that of", popular: "popular, to fill up the answer" };

/** Which of the rules forbid an item, or "the filter" where all of the named ones allow it. */
export function broken(item, rules) {
  if (item.allowed) return [];
  if (!item.in_index) return ["not in the index any more"];
  const names = rules.filter((rule) => !item.rules.includes(rule));
  return names.length ? names : ["the filter"];
}

function why(answer, place, known) {
  const boost = answer.boosts.length ? answer.boosts[place] : 0;
  const score = `${answer.scores[place].toFixed(2)}${boost ? ` (${boost.toFixed(2)} of it from boosts)` : ""}`;
  const reason = answer.reasons[place];
  if (!reason) return `${boost ? "Score" : "Log probability"} ${score} by the ${answer.channel}`;
  const source = reason.item_id === null ? "" : ` ${known.has(reason.item_id) ? titleOf(known.get(reason.item_id)) : reason.item_id}`;
  return `Score ${score}, the largest part (${reason.score.toFixed(2)}) from ${CHANNELS[reason.channel] ?? reason.channel}${source}`;
}

function moved(places, id, place) {
  if (!places) return null;
  const before = places.get(id);
  if (before === undefined) return el("span", { class: "badge" }, "new here");
  if (before === place) return null;
  const text = before > place ? `▲ up from ${before + 1}` : `▼ down from ${before + 1}`;
  return el("span", { class: "badge" }, text);
}

function card({ answer, place, known, rules, places, actions, marks }) {
  const id = answer.item_ids[place];
  const item = known.get(id);
  const faults = marks ? broken(item, rules) : [];
  const title = titleOf(item);
  const verdict = faults.length ? `✗ breaks ${faults.join(", ")}` : marks ? "✓ allowed too" : null;
  const button = ([label, act]) =>
    el("button", { type: "button", class: "small", "aria-label": `${label}: ${title}`, onclick: () => act(item, answer.codes[place]) }, label);
  return el(
    "li",
    { class: faults.length ? "card broken" : "card", "data-id": String(id) },
    pictureOf(item),
    el(
      "div",
      {},
      el("h3", {}, `${place + 1}. ${title} `, moved(places, id, place)),
      el("p", { class: "facts" }, [factsOf(item), String(id)].filter(Boolean).join(" · ")),
      verdict ? el("p", { class: "verdict" }, verdict) : null,
      el("p", { class: "why" }, `${why(answer, place, known)} · `, el("span", { class: "codes" }, `codes ${answer.codes[place].join(" › ")}`)),
      el("p", { class: "row" }, ...actions.map(button)),
    ),
  );
}

/**
 * Show both answers; `without` is null where no rule is chosen. known: items by id. before: the last answer, if what changed
 * since is the catalog alone. actions: [[label, act(item, codes)]] of each card.
 */
export function showAnswers({ answer, without, known, rules, before, actions }) {
  const focused = focusOf(document.activeElement);
  const places = before && new Map(before.item_ids.map((id, place) => [id, place]));
  const was = positions($("with"));
  const cards = (one, options) =>
    one.item_ids.map((_, place) => card({ answer: one, place, known, rules, actions, ...options }));
  $("with").replaceChildren(...cards(answer, { places, marks: false }));
  $("with-title").textContent = without ? "With rules and preferences" : "Items";
  $("without").parentElement.hidden = without === null;
  $("answers").classList.toggle("one", without === null);
  $("without").replaceChildren(...(without ? cards(without, { places: null, marks: true }) : []));
  if (!answer.num_valid) $("with").replaceChildren(el("li", { class: "muted" }, "No item is allowed."));
  if (before) slide($("with"), was);
  focused?.();
}

/** A function that focuses the same button of the card that takes this one's place; null for an element that is on no card. */
function focusOf(element) {
  const card = element?.closest(".card");
  if (!card) return null;
  const [list, label] = [card.parentElement, element.textContent];
  const place = [...list.children].indexOf(card);
  return () => {
    const next = list.children[Math.min(place, list.children.length - 1)];
    ([...(next?.querySelectorAll("button") ?? [])].find((button) => button.textContent === label) ?? $("answers")).focus({ preventScroll: true });
  };
}

const positions = (list) => new Map([...list.children].map((one) => [one.dataset.id, one.getBoundingClientRect().top]));

/** Let cards glide from where they were. */
function slide(list, was) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const one of list.children) {
    const from = was.get(one.dataset.id);
    const by = from === undefined ? 0 : from - one.getBoundingClientRect().top;
    if (by) one.animate([{ transform: `translateY(${by}px)` }, { transform: "none" }], { duration: 350, easing: "ease" });
  }
}

const STAGES = {
  prepare: "ids and rules looked up",
  queue: "waiting for a batch",
  prefill: "the model reads the history",
  rounds: "the model scores the beams",
  constrain: "legal codes chosen",
  postprocess: "codes to items, item memory",
};

/** Stage timings as numbers and bars. */
export function showStages(timings) {
  const rows = Object.entries(STAGES).flatMap(([name, meaning]) => {
    const value = timings[name];
    const share = timings.total ? value / timings.total : 0;
    return [
      el("dt", {}, meaning),
      el("dd", { class: "number" }, `${value.toFixed(2)} ms`),
      el("dd", {}, el("meter", { min: 0, max: 1, value: share, "aria-label": `${meaning}: share of the total` })),
    ];
  });
  $("stages").replaceChildren(...rows, el("dt", {}, "total"), el("dd", { class: "number" }, `${timings.total.toFixed(2)} ms`));
}
