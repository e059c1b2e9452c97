// The request as the page's address has it, behind `#`: what follows there is not sent to the server, nor logged by it.

const NUMBERS = ["num_items", "num_beams"];
const TEXTS = ["filter", "scoring", "channel"];
const NONE = { cap: { name: "", number: 2 }, quota: { name: "", number: 3 } };
export const DEFAULTS = {
  history: [], rules: [], filter: "", num_items: 10, num_beams: null, scoring: "full", channel: "", leave_out: true, boosts: {}, ...NONE,
};

/** The state of an address; ids are text, whatever the server's are. */
export function fromHash(hash) {
  const values = new URLSearchParams(hash.replace(/^#/, ""));
  const state = { ...DEFAULTS, history: values.getAll("item"), rules: values.getAll("rule") };
  for (const name of NUMBERS) if (/^[1-9]\d{0,2}$/.test(values.get(name) ?? "")) state[name] = Number(values.get(name));
  for (const name of TEXTS) state[name] = values.get(name) ?? DEFAULTS[name];
  if (!["full", "allowed"].includes(state.scoring)) state.scoring = "full";
  if (!["", "model", "memory", "fused"].includes(state.channel)) state.channel = "";
  const weights = values.getAll("boost").map((text) => [text.slice(0, text.lastIndexOf(":")), Number(text.slice(text.lastIndexOf(":") + 1))]);
  state.boosts = Object.fromEntries(weights.filter(([name, weight]) => name && Number.isFinite(weight)));
  for (const part of Object.keys(NONE)) {
    const [, name, number] = /^(.+):([1-9]\d{0,2})$/.exec(values.get(part) ?? "") ?? [];
    state[part] = name ? { name, number: Number(number) } : NONE[part];
  }
  state.leave_out = values.get("leave_out") !== "no";
  return state;
}

/** The address of a state; what is as by default is left out. */
export function toHash(state) {
  const values = new URLSearchParams();
  for (const id of state.history) values.append("item", id);
  for (const rule of state.rules) values.append("rule", rule);
  for (const name of [...NUMBERS, ...TEXTS]) {
    if (state[name] !== null && state[name] !== DEFAULTS[name]) values.set(name, state[name]);
  }
  for (const [name, weight] of Object.entries(state.boosts)) if (weight) values.append("boost", `${name}:${weight}`);
  for (const part of Object.keys(NONE)) if (state[part].name) values.set(part, `${state[part].name}:${state[part].number}`);
  if (!state.leave_out) values.set("leave_out", "no");
  return `#${values}`;
}
