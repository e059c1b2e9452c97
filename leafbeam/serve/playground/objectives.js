// Objectives: a slider for the weight of each boost, a cap on the items of one value of a column, a quota of items of a rule.

import { get } from "./api.js";
import { $, el, plural } from "./dom.js";

/** The names of all boosts; those that the server does not show are none. */
export async function loadBoosts() {
  try {
    return (await get("/v1/boosts")).boosts.map((boost) => boost.name);
  } catch (error) {
    if (error.status !== 403) throw error; // they are shown to the server's own machine, or to keys of scope admin
    return [];
  }
}

/** Whether a request prefers anything. */
export const hasObjectives = ({ boosts, cap, quota }) =>
  Object.values(boosts).some((weight) => weight !== 0) || cap.name !== "" || quota.name !== "";

/** The fields of a request. */
export function fieldsOf({ boosts, cap, quota }) {
  const weights = Object.fromEntries(Object.entries(boosts).filter(([, weight]) => weight !== 0));
  return {
    ...(Object.keys(weights).length ? { boosts: weights } : {}),
    ...(cap.name ? { at_most: { [cap.name]: cap.number } } : {}),
    ...(quota.name ? { at_least: { [quota.name]: quota.number } } : {}),
  };
}

const options = (names, chosen) =>
  ["", ...new Set([...names, ...(chosen ? [chosen] : [])])].map((name) => el("option", { value: name, selected: name === chosen }, name || "none"));

/** Draw the sliders and selectors; `changed(part)` is called with what was chosen. */
export function showObjectives({ boosts, columns, rules, state, changed }) {
  const names = [...new Set([...boosts, ...Object.keys(state.boosts)])];
  $("boosts").replaceChildren(
    ...(names.length ? [el("p", { class: "muted row" }, "A boost of 0.7 makes an item twice as likely.")] : []),
    ...names.map((name) => {
      const shown = el("output", { class: "number" }, (state.boosts[name] ?? 0).toFixed(1));
      const slide = (event) => {
        const weight = Number(event.target.value);
        shown.textContent = weight.toFixed(1);
        changed({ boosts: { ...state.boosts, [name]: weight } });
      };
      const slider = el("input", { type: "range", min: -3, max: 3, step: 0.1, value: state.boosts[name] ?? 0, oninput: slide });
      return el("label", { class: "slider" }, el("span", {}, `Boost ${name} `, shown), slider);
    }),
  );
  for (const [part, names] of [["cap", columns], ["quota", rules.map((rule) => rule.name)]]) {
    const { name, number } = state[part];
    const choose = () => changed({ [part]: { name: $(`${part}-name`).value, number: Math.max(1, Number($(`${part}-number`).value) || 1) } });
    $(`${part}-name`).replaceChildren(...options(names, name));
    $(`${part}-name`).onchange = choose;
    $(`${part}-number`).value = number;
    $(`${part}-number`).oninput = choose;
  }
}

/** What an answer lacks of its quotas. */
export const unmetOf = ({ unmet }) =>
  Object.entries(unmet).map(([rule, missing]) => `; ${plural(missing, "item")} of ${rule} too few`).join("");
