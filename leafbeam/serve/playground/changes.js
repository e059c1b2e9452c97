// The catalog's panel: put and remove items, and put rules, where the server takes changes.

import { get, put, putItem, remove } from "./api.js";
import { $, el, titleOf } from "./dom.js";

/** The panel, or null if the server takes no changes. paths: those that it has. changed(): called after each change, to ask again. */
export async function openChanges(paths, numericIds, changed) {
  if (!("/v1/catalog" in paths)) return null;
  const catalog = await get("/v1/catalog");
  if (!catalog.writable) return null;
  const panel = new Changes(catalog, numericIds, changed);
  $("change").hidden = false;
  return panel;
}

class Changes {
  constructor(catalog, numericIds, changed) {
    this.catalog = catalog;
    this.numericIds = numericIds;
    this.changed = changed;
    const needsCodes = catalog.text_columns.length === 0;
    $("change-note").textContent = needsCodes
      ? `A new item needs codes. ${catalog.reason ?? ""}`
      : `A new item gets its codes from ${catalog.text_columns.join(", ")}. Begin with a copy of a card.`;
    const names = ["item_id", ...Object.keys(catalog.columns), "codes"];
    $("fields").replaceChildren(...names.map((name) => this.field(name, needsCodes)));
    $("item").addEventListener("submit", (event) => this.submitItem(event));
    $("rule").addEventListener("submit", (event) => this.submitRule(event));
  }

  field(name, needsCodes) {
    const required = name === "item_id" || (name === "codes" && needsCodes);
    const hint = name === "codes" ? this.catalog.codebook_sizes.map((size) => `0-${size - 1}`).join(" ") : this.catalog.columns[name];
    const wide = name === "title" ? "wide" : null;
    return el("label", { class: wide }, name, el("input", { name, required, placeholder: hint, autocomplete: "off" }));
  }

  /** Fill the form with a copy of an item, under an id of its own. */
  copy(item, sid) {
    const inputs = $("item").elements;
    for (const [name, value] of Object.entries(item.attributes)) if (inputs[name]) inputs[name].value = value ?? "";
    inputs.item_id.value = typeof item.item_id === "number" ? item.item_id + 1_000_000_000 : `${item.item_id}-copy`;
    inputs.codes.value = this.catalog.text_columns.length ? "" : sid.join(" ");
    inputs.item_id.focus();
  }

  /** Remove an item; the list of changes can put it back. */
  async remove(item, sid) {
    await this.change(`Removed ${titleOf(item)}`, () => remove(`/v1/items/${encodeURIComponent(item.item_id)}`), [
      "Put it back",
      () => this.put({ item_id: item.item_id, codes: sid, ...item.attributes }, titleOf(item)),
    ]);
  }

  async put(item, title) {
    await this.change(`Put ${title}`, () => putItem(item), null);
  }

  async submitItem(event) {
    event.preventDefault();
    const item = {};
    for (const input of $("item").elements) {
      if (!input.name || input.value === "") continue;
      item[input.name] = this.valueOf(input.name, input.value);
    }
    await this.put(item, item.title ?? item.item_id);
  }

  valueOf(name, text) {
    if (name === "codes") return text.split(/[\s,›]+/).filter(Boolean).map(Number);
    const kind = name === "item_id" && this.numericIds ? "int64" : (this.catalog.columns[name] ?? "");
    if (/^(u?int|float|double|halffloat|decimal)/.test(kind)) return Number(text);
    return kind === "bool" ? text === "true" : text;
  }

  async submitRule(event) {
    event.preventDefault();
    const name = $("rule-name").value;
    await this.change(`Put the rule ${name}`, () => put(`/v1/rules/${encodeURIComponent(name)}`, { where: $("rule-where").value }), null);
  }

  /** Make a change, ask again, and list it with the time it took. */
  async change(title, work, undo) {
    const began = performance.now();
    const line = el("li", {});
    try {
      await work();
      line.append(`${title}: on disk in ${(performance.now() - began).toFixed(0)} ms. `);
      if (undo) line.append(el("button", { type: "button", class: "small", onclick: undo[1] }, undo[0]));
    } catch (error) {
      line.append(el("span", { class: "error" }, `${title} failed: ${error.message}`));
    }
    $("changes").prepend(line);
    await this.changed();
  }
}
