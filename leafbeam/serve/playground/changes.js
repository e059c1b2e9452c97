// The catalog's panel: put and remove items, count interactions, and put rules, where the server takes changes.

import { interact, put, putItem, remove, wholeOf } from "./api.js";
import { combobox } from "./combobox.js";
import { $, el, plural, titleColumn, titleOf } from "./dom.js";
import { columnCompletions } from "./rules.js";

const NUMBER = /^(u?int|float|double|halffloat|decimal)/;
const COPY = 1_000_000_000n; // how far the id of a copy is from that of its original
const HIGH = 2n ** 62n;

function copyOf(id) {
  if (typeof id === "string") return `${id}-copy`;
  return String(BigInt(id) + (BigInt(id) > HIGH ? -COPY : COPY));
}

export class Changes {
  /** catalog: what GET /v1/catalog says. learns: whether interactions count. changed(): asks again, and resolves to the answer. */
  constructor(catalog, learns, changed) {
    this.catalog = catalog;
    this.learns = learns;
    this.changed = changed;
    $("change").hidden = false;
    $("item").hidden = $("rule").hidden = !catalog.writable;
    if (!catalog.writable) {
      $("change-note").textContent = `Items and rules cannot be changed here: ${catalog.reason}.`;
      return;
    }
    const needsCodes = catalog.text_columns.length === 0;
    $("change-note").textContent = needsCodes
      ? `A new item needs codes: ${catalog.reason}.`
      : `A new item gets its codes from ${catalog.text_columns.join(", ")}. Begin with “Copy as new” on a card.`;
    const names = ["item_id", ...Object.keys(catalog.columns), "codes"];
    $("fields").replaceChildren(...names.map((name) => this.field(name, needsCodes)));
    $("item").addEventListener("submit", (event) => this.submitItem(event));
    $("rule").addEventListener("submit", (event) => this.submitRule(event));
    combobox($("rule-where"), $("columns"), {
      eager: false,
      suggest: async (text, caret) => columnCompletions(catalog.columns, text, caret),
      choose: ([text, caret]) => {
        $("rule-where").value = text;
        $("rule-where").setSelectionRange(caret, caret);
      },
    });
  }

  /** What a card offers: [[label, act(item, codes)]]. */
  get actions() {
    const change = [["Copy as new", (item, codes) => this.copy(item, codes)], ["Remove", (item, codes) => this.remove(item, codes)]];
    return this.catalog.writable ? change : [];
  }

  field(name, needsCodes) {
    const kind = this.kindOf(name);
    const required = name === "item_id" || (name === "codes" && needsCodes);
    const optional = name === "codes" && !needsCodes ? "made from the text" : null;
    const hint = name === "codes" ? this.catalog.codebook_sizes.map((size) => `0-${size - 1}`).join(" ") : null;
    return el(
      "label",
      { class: name === titleColumn.name || name === "codes" ? "wide" : null },
      name,
      el("input", {
        name,
        required,
        type: kind.startsWith("date") ? "date" : "text",
        inputmode: NUMBER.test(kind) ? "decimal" : null,
        placeholder: optional ?? hint ?? (kind === "string" ? null : kind),
        autocomplete: "off",
      }),
    );
  }

  kindOf(name) {
    if (name === "item_id") return this.catalog.item_ids === "numbers" ? "int64" : "string";
    return this.catalog.columns[name] ?? "string";
  }

  /** Fill the form with a copy of an item, under an id of its own. */
  copy(item, codes) {
    const inputs = $("item").elements;
    for (const [name, value] of Object.entries(item.attributes)) if (inputs[name]) inputs[name].value = value ?? "";
    inputs.item_id.value = copyOf(item.item_id);
    inputs.codes.value = this.catalog.text_columns.length ? "" : codes.join(" ");
    (inputs[titleColumn.name] ?? inputs.item_id).focus();
  }

  /** Remove an item; the list of changes can put it back. */
  async remove(item, codes) {
    await this.change(`Removed ${titleOf(item)}`, () => remove(`/v1/items/${encodeURIComponent(item.item_id)}`), {
      undo: ["Put it back", () => this.put({ item_id: item.item_id, codes, ...item.attributes }, titleOf(item))],
    });
  }

  async put(item, title) {
    await this.change(`Put ${title}`, () => putItem(item), { item_id: item.item_id });
  }

  /** Count that an item was taken after a history. */
  async take(history, item) {
    await this.change(`Counted ${titleOf(item)} after the ${plural(history.length, "item")} of the history`, () => interact(history, item.item_id));
  }

  async submitItem(event) {
    event.preventDefault();
    const item = {};
    for (const input of $("item").elements) {
      if (!input.name || input.value === "") continue;
      item[input.name] = this.valueOf(input.name, input.value);
    }
    await this.put(item, item[titleColumn.name] ?? item.item_id);
  }

  /** What was typed, as the column's type has it; the server explains what is not of it. */
  valueOf(name, text) {
    if (name === "codes") return text.split(/[\s,›]+/).filter(Boolean).map((code) => (/^\d+$/.test(code) ? wholeOf(code) : code));
    const kind = this.kindOf(name);
    if (NUMBER.test(kind)) {
      if (/^-?\d+$/.test(text.trim())) return wholeOf(text.trim());
      return Number.isFinite(Number(text)) ? Number(text) : text;
    }
    return kind === "bool" ? ({ true: true, false: false }[text.trim()] ?? text) : text;
  }

  async submitRule(event) {
    event.preventDefault();
    const name = $("rule-name").value;
    const path = `/v1/rules/${encodeURIComponent(name)}`;
    await this.change(`Put the rule ${name}`, () => put(path, { where: $("rule-where").value }), {
      undo: ["Remove it", () => this.change(`Removed the rule ${name}`, () => remove(path))],
    });
  }

  /** Make a change, ask again, and list it with the time it took. item_id: of an item to look for in the new answer. */
  async change(title, work, { undo = null, item_id = null } = {}) {
    const began = performance.now();
    const line = el("li", {});
    try {
      await work();
      const seconds = performance.now() - began;
      const answer = await this.changed();
      const place = item_id === null || !answer ? null : answer.item_ids.indexOf(item_id) + 1;
      const where = place === null ? "" : place ? `, and it is number ${place} of the answer` : `, and it is not among the ${answer.num_valid} of the answer`;
      line.append(`${title}: on disk in ${seconds.toFixed(0)} ms${where}. `);
      if (undo) line.append(el("button", { type: "button", class: "small", onclick: undo[1] }, undo[0]));
    } catch (error) {
      line.append(el("span", { class: "error" }, `${title} failed: ${error.message}`));
    }
    $("changes").prepend(line);
  }
}
