// Rules: toggles with counts, sliders over rules that bound the same column, and names to complete in an expression.

import { get } from "./api.js";
import { $, el, plural } from "./dom.js";

const COLUMN = String.raw`"?([A-Za-z_]\w*)"?`;
const BOUND = new RegExp(String.raw`^\s*${COLUMN}\s*(<=?|>=?)\s*(-?\d+(?:\.\d+)?)\s*$`);
const DATE = new RegExp(String.raw`^\s*${COLUMN}\s*(<=?|>=?)\s*(?:DATE\s*|TIMESTAMP\s*)?'(\d{4}-\d\d-\d\d)[^']*'\s*$`, "i");
const AGE = new RegExp(String.raw`^\s*${COLUMN}\s*(>=?)\s*.+-\s*INTERVAL\s+'?(\d+)'?\s+(HOUR|DAY|WEEK|MONTH|YEAR)S?'?\s*$`, "is");
const DAYS = { HOUR: 1 / 24, DAY: 1, WEEK: 7, MONTH: 30, YEAR: 365 };

/** All rules: {name, num_items, where}; `where` is null if the server does not show predicates. */
export async function loadRules() {
  try {
    return (await get("/v1/rules")).rules;
  } catch (error) {
    if (error.status !== 403) throw error; // they are shown to the server's own machine, or to keys of scope admin
  }
  const { rules } = await get("/readyz");
  return Object.entries(rules).map(([name, num_items]) => ({ name, num_items, where: null }));
}

/** The bound that a predicate sets on one column, or null: {key, column, sign, order, label}; the stricter, the larger `order`. */
export function boundOf(where) {
  let found = BOUND.exec(where ?? "");
  if (found) {
    const [, column, sign, number] = found;
    const order = sign[0] === "<" ? -Number(number) : Number(number);
    return { key: `${column} ${sign[0]}`, column, order, label: `${sign[0] === "<" ? "below" : "above"} ${number}` };
  }
  found = DATE.exec(where ?? "");
  if (found) {
    const [, column, sign, day] = found;
    const order = (sign[0] === "<" ? -1 : 1) * Date.parse(day);
    return { key: `${column} ${sign[0]} date`, column, order, label: `${sign[0] === "<" ? "before" : "since"} ${day}` };
  }
  found = AGE.exec(where ?? "");
  if (!found) return null;
  const [, column, , number, unit] = found;
  const plural = number === "1" ? "" : "s";
  const label = `the last ${number} ${unit.toLowerCase()}${plural}`;
  return { key: `${column} age`, column, order: -Number(number) * DAYS[unit.toUpperCase()], label };
}

/** Rules that bound the same column the same way, two or more, from loose to strict: [{column, stops: [{rule, label}]}]. */
export function boundsOf(rules) {
  const groups = new Map();
  for (const rule of rules) {
    const bound = boundOf(rule.where);
    if (bound) groups.set(bound.key, [...(groups.get(bound.key) ?? []), { ...bound, rule: rule.name }]);
  }
  const sliders = [...groups.values()].filter((stops) => stops.length > 1);
  return sliders.map((stops) => ({ column: stops[0].column, stops: stops.sort((one, other) => one.order - other.order) }));
}

/** Draw toggles and sliders; `changed(names)` is called with the chosen rules. Chosen names that are no rule can be taken back. */
export function showRules(known, chosen, changed) {
  const names = new Set(chosen);
  const unknown = chosen.filter((name) => known.every((rule) => rule.name !== name));
  const rules = [...known, ...unknown.map((name) => ({ name, num_items: null, where: null }))];
  const toggle = (name, on) => {
    if (on) names.add(name);
    else names.delete(name);
  };
  const boxes = rules.map((rule) =>
    el(
      "label",
      { class: "check" },
      el("input", {
        type: "checkbox",
        value: rule.name,
        checked: names.has(rule.name),
        onchange: (event) => {
          toggle(rule.name, event.target.checked);
          showSliders();
          changed([...names]);
        },
      }),
      el("span", {}, rule.name, rule.where ? el("small", {}, rule.where) : null),
      el("span", { class: "count" }, rule.num_items === null ? "no such rule" : plural(rule.num_items, "item")),
    ),
  );
  $("rules").replaceChildren(...(boxes.length ? boxes : [el("p", { class: "muted" }, "This server has no rules.")]));

  function showSliders() {
    $("sliders").replaceChildren(...boundsOf(rules).map(slider));
  }

  function slider({ column, stops }) {
    const labels = ["any", ...stops.map((stop) => stop.label)];
    const at = 1 + stops.findLastIndex((stop) => names.has(stop.rule));
    const output = el("output", {}, labels[at]);
    const input = el("input", {
      type: "range",
      min: 0,
      max: stops.length,
      value: at,
      "aria-valuetext": labels[at],
      oninput: () => {
        const position = Number(input.value);
        output.textContent = labels[position];
        input.setAttribute("aria-valuetext", labels[position]);
        stops.forEach((stop, number) => toggle(stop.rule, number === position - 1));
        for (const box of $("rules").querySelectorAll("input")) box.checked = names.has(box.value);
        changed([...names]);
      },
    });
    return el("label", {}, `${column}: `, output, input);
  }
  showSliders();
}

/** The word that the caret is in or behind: [its text, where it begins, where it ends]. */
export function wordAt(text, caret) {
  const begin = caret - /[A-Za-z0-9_-]*$/.exec(text.slice(0, caret))[0].length;
  const end = caret + /^[A-Za-z0-9_-]*/.exec(text.slice(caret))[0].length;
  return [text.slice(begin, caret), begin, end];
}

/** Completions of the word at the caret: [{label, note, value: [new text, new caret]}], by the names of rules and their columns. */
export function completions(rules, columns, text, caret) {
  const [word] = wordAt(text, caret);
  const begins = (name) => name.toLowerCase().startsWith(word.toLowerCase());
  const named = columns.filter((column) => word && begins(column));
  const reads = (where) => named.find((column) => new RegExp(String.raw`\b${column}\b`).test(where ?? ""));
  const found = rules.filter((rule) => rule.name !== word && (begins(rule.name) || reads(rule.where)));
  found.sort((one, other) => begins(other.name) - begins(one.name));
  return found.map((rule) => completion(rule.name, [plural(rule.num_items, "item"), rule.where].filter(Boolean).join(" · "), text, caret));
}

/** Completions of a predicate: the names of columns, {name: type}. */
export function columnCompletions(columns, text, caret) {
  const [word] = wordAt(text, caret);
  const found = Object.entries(columns).filter(([name]) => word && name !== word && name.toLowerCase().startsWith(word.toLowerCase()));
  return found.map(([name, kind]) => completion(name, kind, text, caret));
}

function completion(name, note, text, caret) {
  const [, begin, end] = wordAt(text, caret);
  return { label: name, note, value: [text.slice(0, begin) + name + text.slice(end), begin + name.length] };
}
