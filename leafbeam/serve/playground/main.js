// The page: its state is the request, kept in the address; each change of it asks the server again.

import * as api from "./api.js";
import { broken, showAnswers, showStages } from "./answers.js";
import { Changes } from "./changes.js";
import { combobox } from "./combobox.js";
import { copy, curlOf, pythonOf } from "./copy.js";
import { $, count, debounced, factsOf, plural, setTitleColumn, titleOf } from "./dom.js";
import { showHistory } from "./history.js";
import { showKey } from "./keys.js";
import { watchServer } from "./live.js";
import { fieldsOf, hasObjectives, loadBoosts, showObjectives, unmetOf } from "./objectives.js";
import { explainBlockedPictures } from "./pictures.js";
import { completions, loadRules, showRules } from "./rules.js";
import { DEFAULTS, fromHash, toHash } from "./state.js";
import { drawTrie, showLevels, tableOf } from "./trie.js";

const FIELDS = ["num_items", "num_beams", "scoring", "channel"];
const NEWEST = 50; // items of a user's history that are shown

class Page {
  constructor() {
    this.state = fromHash(location.hash);
    this.known = new Map(); // items by id, as the server has them
    this.rules = [];
    this.changes = null;
    this.last = null;
    this.asking = new AbortController();
    this.numLevels = 0;
    this.ask = debounced(() => this.askNow(), 120);
  }

  async start() {
    const items = this.loadItems().catch((error) => {
      this.showError(error); // an id of another kind in the address
      this.state.history = [];
      return this.loadItems();
    });
    items.catch(() => {}); // awaited below; without this, the browser would report a failure as unhandled until then
    const first = items.then(() => this.answers()); // on its way while the rest of the page is made
    first.catch(() => {});
    this.paths = (await api.get("/openapi.json")).paths;
    showKey();
    $("ruled").hidden = !this.has("/v1/rules");
    $("users").hidden = !this.has("/v1/users/{user}");
    const [catalog] = await Promise.all([this.has("/v1/catalog") ? api.get("/v1/catalog") : null, this.loadRules(), items]);
    this.columns = Object.keys(catalog?.columns ?? {});
    $("objectives").hidden = !this.has("/v1/rules");
    if (catalog) {
      this.changes = new Changes(catalog, this.has("/v1/interactions"), async () => {
        await this.loadRules();
        this.showObjectives();
        await this.askNow({ sameRequest: true });
        return this.last;
      });
    }
    this.showForm();
    this.bind();
    performance.mark("interactive");
    await this.showAnswers(first);
    performance.mark("answered");
    watchServer();
  }

  /** Whether the server has a route. */
  has(path) {
    return path in this.paths;
  }

  /** The items of the history; without one in the address, the first items of the catalog. */
  async loadItems() {
    const ids = this.state.history;
    const found = await api.items(ids.length ? { ids } : { limit: 3 });
    setTitleColumn(found.title_column);
    $("by").textContent = found.title_column ? "title or id" : "id";
    for (const item of found.items) this.known.set(item.item_id, item);
    this.state.history = found.items.map((item) => item.item_id);
  }

  async loadRules() {
    this.rules = this.has("/v1/rules") ? await loadRules() : [];
    showRules(this.rules, this.state.rules, (names) => {
      this.state.rules = names;
      this.ask();
    });
    this.boosts = this.has("/v1/boosts") ? await loadBoosts() : [];
  }

  showObjectives() {
    const { boosts, columns, rules, state } = this;
    const changed = (part) => {
      Object.assign(state, part);
      this.ask();
    };
    showObjectives({ boosts, columns, rules, state, changed });
  }

  showForm() {
    this.showObjectives();
    $("filter").value = this.state.filter;
    for (const name of FIELDS) $(name).value = this.state[name] ?? "";
    $("leave_out").checked = this.state.leave_out;
    this.showHistory();
  }

  showHistory() {
    showHistory(this.state.history, this.known, (ids) => {
      this.state.history = ids;
      this.showHistory();
      this.ask();
    });
  }

  /** Take the newest items of a user in place of the history. */
  async takeHistoryOf(user) {
    const { history } = await api.get(`/v1/users/${encodeURIComponent(user)}`);
    this.state.history = history.slice(-NEWEST);
    await this.loadItems();
    this.showHistory();
    this.ask();
  }

  addToHistory(item) {
    this.known.set(item.item_id, item);
    this.state.history = [...this.state.history, item.item_id];
    this.showHistory();
    this.ask();
  }

  /** Count the item as taken after the history, and go on from there. */
  async take(item) {
    const before = this.state.history;
    this.addToHistory(item);
    await this.changes.take(before, item);
  }

  bind() {
    combobox($("search"), $("found"), {
      eager: true,
      suggest: async (text) => {
        if (!text.trim()) return [];
        try {
          const { items } = await api.items({ query: text, limit: 12 });
          return items.map((item) => ({ label: titleOf(item), note: [String(item.item_id), factsOf(item)].join(" · "), value: item }));
        } catch (error) {
          this.showError(error);
          return [];
        }
      },
      choose: (item) => {
        $("search").value = "";
        this.addToHistory(item);
      },
    });
    combobox($("filter"), $("names"), {
      eager: false,
      suggest: async (text, caret) => completions(this.rules, this.columns, text, caret),
      choose: ([text, caret]) => {
        $("filter").value = text;
        $("filter").setSelectionRange(caret, caret);
        this.readForm();
      },
    });
    $("user").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault(); // no submission of the form
      if (event.target.value.trim()) this.takeHistoryOf(event.target.value.trim()).catch((error) => this.showError(error));
    });
    $("request").addEventListener("input", (event) => {
      if (!["search", "user"].includes(event.target.id) && event.target.closest("#rules, #sliders, #objectives") === null) this.readForm();
    });
    $("request").addEventListener("submit", (event) => {
      event.preventDefault();
      this.readForm();
      this.askNow();
      const results = $("summary").parentElement;
      if (results.getBoundingClientRect().top > innerHeight) results.scrollIntoView(); // below the form, on a phone
    });
    $("clear").addEventListener("click", () => {
      this.state.history = [];
      this.showHistory();
      this.ask();
    });
    for (const [id, textOf] of [["curl", curlOf], ["python", pythonOf]]) {
      $(id).addEventListener("click", () => copy($(id), textOf(this.body(true))).catch((error) => this.showError(error)));
    }
    $("back").addEventListener("click", () => this.showLevel(this.level - 1));
    $("on").addEventListener("click", () => this.showLevel(this.level + 1));
    $("play").addEventListener("click", () => this.play());
    addEventListener("hashchange", () => this.readAddress());
    addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
      event.preventDefault();
      $("search").focus();
    });
  }

  readForm() {
    this.state.filter = $("filter").value;
    for (const name of FIELDS) {
      const { type, value } = $(name);
      if ($(name).checkValidity()) this.state[name] = type === "number" ? (value === "" ? null : Number(value)) : value;
    }
    this.state.leave_out = $("leave_out").checked;
    this.ask();
  }

  async readAddress() {
    if (location.hash === toHash(this.state)) return;
    this.state = fromHash(location.hash);
    try {
      await this.loadItems();
      await this.loadRules();
      this.showForm();
    } catch (error) {
      this.showError(error);
    }
    await this.askNow();
  }

  /** The body of a request; `ruled` is false for the one without rules and preferences. */
  body(ruled) {
    const { history, rules, filter, num_items, num_beams, scoring, channel, leave_out } = this.state;
    return {
      history,
      num_items: num_items ?? DEFAULTS.num_items,
      scoring,
      ...(num_beams ? { num_beams } : {}),
      ...(channel ? { channel } : {}),
      ...(leave_out ? {} : { keep_history: true }),
      ...(ruled && rules.length ? { rules } : {}),
      ...(ruled && filter.trim() ? { filter } : {}),
      ...(ruled ? fieldsOf(this.state) : {}),
    };
  }

  /** Ask with and without the rules, and for the items of both answers. */
  async answers() {
    history.replaceState(null, "", toHash(this.state));
    const { signal } = this.asking;
    const { rules, filter } = this.state;
    const ruled = rules.length > 0 || filter.trim() !== "" || hasObjectives(this.state);
    const began = performance.now();
    const asked = [this.body(true), ...(ruled ? [this.body(false)] : [])];
    const [answer, without = null] = await Promise.all(asked.map((body) => api.post("/v1/recommend", { ...body, explain: true }, { signal })));
    const milliseconds = performance.now() - began;
    const ids = [...new Set([...answer.item_ids, ...(without?.item_ids ?? [])])];
    const found = await api.items(ids.length ? { ids, rules, filter } : { limit: 0, rules, filter }, signal);
    return { answer, without, found, milliseconds };
  }

  /** Ask, count and show. sameRequest: what changed is the catalog, so cards show how they moved. */
  async askNow({ sameRequest = false } = {}) {
    this.asking.abort();
    this.asking = new AbortController();
    this.count();
    await this.showAnswers(this.answers(), sameRequest);
  }

  /** Count the items that the rules allow, which takes less time than a search. */
  async count() {
    const { rules, filter } = this.state;
    try {
      this.showCount(await api.items({ limit: 0, rules, filter }, this.asking.signal));
    } catch (error) {
      if (error.name !== "AbortError") this.showCount(null); // the search says what is wrong
    }
  }

  showCount(found) {
    const text = found ? `These rules allow ${count(found.num_allowed)} of ${plural(found.num_items, "item")}.` : "";
    if ($("allowed").textContent !== text) $("allowed").textContent = text; // a screen reader reads what is set
  }

  async showAnswers(answers, sameRequest = false) {
    try {
      const shown = await answers;
      for (const item of shown.found.items) this.known.set(item.item_id, item);
      this.show({ ...shown, sameRequest });
      $("error").hidden = true;
    } catch (error) {
      if (error.name !== "AbortError") this.showError(error);
    }
  }

  show({ answer, without, found, milliseconds, sameRequest }) {
    const { rules } = this.state;
    $("server").textContent = `${plural(found.num_items, "item")}, version ${answer.index_version}`;
    this.showCount(found);
    const how = answer.exact ? ", proved to be the model's best" : `, ${answer.num_exact} proved to be the model's best`;
    const isRuled = rules.length > 0 || this.state.filter.trim() !== "";
    const wrong = without && isRuled ? `; without rules, ${without.item_ids.filter((id) => broken(this.known.get(id), rules).length).length} of ${without.num_valid} would break them` : "";
    const left = answer.num_history_left_out ? `; ${plural(answer.num_history_left_out, "item")} of the history left out` : "";
    const ignored = answer.ignored_history.length ? `; not in the index: ${answer.ignored_history.join(", ")}` : "";
    const empty = answer.empty_rules.length ? `; no item is left by ${answer.empty_rules.join(" and ").replaceAll("and - ", "- ")}` : "";
    const unmet = unmetOf(answer);
    const beams = answer.num_beams ? `${plural(answer.rows, "row")} of the model${how}` : "no search";
    $("summary").textContent = `${plural(answer.num_valid, "item")} in ${milliseconds.toFixed(0)} ms, ${beams}${left}${ignored}${empty}${unmet}${wrong}.`;
    const actions = [["Add to history", (item) => this.addToHistory(item)], ...(this.changes?.actions ?? [])];
    if (this.changes?.learns) actions.unshift(["Take", (item) => this.take(item)]);
    showAnswers({ answer, without, known: this.known, rules, before: sameRequest ? this.last : null, actions });
    this.last = answer;
    showStages(answer.timings_ms);
    const leaves = [answer, without].filter(Boolean).flatMap((one) =>
      one.item_ids.map((id, place) => ({ item: this.known.get(id), codes: one.codes[place], broken: broken(this.known.get(id), rules).length > 0 })),
    );
    const unique = [...new Map(leaves.map((leaf) => [leaf.item.item_id, leaf])).values()];
    this.numLevels = drawTrie($("trie"), answer.levels, without?.levels ?? null, unique);
    const tables = [tableOf("With the rules", answer.levels), ...(without ? [tableOf("Without rules", without.levels)] : [])];
    $("levels").replaceChildren(...tables);
    this.showLevel(this.numLevels);
  }

  showLevel(level) {
    this.level = Math.min(Math.max(level, 0), this.numLevels);
    showLevels($("trie"), this.level);
    $("level").textContent = this.numLevels ? `${this.level} of ${plural(this.numLevels, "level")}` : "";
    $("back").disabled = this.level === 0;
    $("on").disabled = this.level === this.numLevels;
  }

  play() {
    clearInterval(this.timer);
    this.showLevel(0);
    this.timer = setInterval(() => {
      this.showLevel(this.level + 1);
      if (this.level === this.numLevels) clearInterval(this.timer);
    }, 700);
  }

  showError(error) {
    $("error").textContent = error.message;
    $("error").hidden = false;
  }
}

explainBlockedPictures();
const page = new Page();
page.start().catch((error) => page.showError(error));
