// Elements: found by id, and made. Text is always set as text, never as HTML.

export const $ = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const count = (number) => number.toLocaleString("en");

/** `2 items`. */
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** The column of the items' titles. */
export const titleColumn = { name: "title" };
export function setTitleColumn(name) {
  titleColumn.name = name ?? "title";
}

/** The title of an item, or its id. */
export const titleOf = (item) => String(item.attributes[titleColumn.name] || item.item_id);

/** A few short attributes of an item beside its title. */
export function factsOf(item) {
  const title = titleOf(item);
  const facts = Object.entries(item.attributes).filter(
    ([name, value]) => name !== titleColumn.name && value !== null && typeof value !== "object" && String(value).length < 40 && !/^(https?|data):/.test(value),
  ).filter(([, value]) => typeof value !== "string" || !title.includes(value)); // a brand in the title is known already
  return facts.slice(0, 4).map(([name, value]) => `${name} ${value}`).join(" · ");
}

/** Call `work` once nothing has called for `ms` milliseconds. */
export function debounced(work, ms) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), ms);
  };
}
