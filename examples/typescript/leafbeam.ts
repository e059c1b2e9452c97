// Written by examples/typescript/generate.py from the OpenAPI document of leafbeam. Do not edit.

/** A boost in use. */
export interface BoostAnswer {
  name: string;
  expression: string;
  refresh_s: number | null;
  /** The number of items for which the boost is not 0. */
  num_items: number;
  /** The reason why the last evaluation failed; the numbers of the evaluation before stay in use. */
  error: string | null;
  /** Seconds since it was last evaluated over all items. */
  age_s: number | null;
}

/** A boost. */
export interface BoostBody {
  /** An SQL expression over the columns that yields a number for each item, such as `0.1 * margin`. */
  expression: string;
  /** The interval at which the boost is evaluated again, such as `1h`. By default it is evaluated when items change or rules are reloaded. */
  refresh?: string | null;
}

/** All boosts in use. */
export interface BoostsAnswer {
  boosts: Array<BoostAnswer>;
}

/** The catalog now. */
export interface CatalogAnswer {
  index_version: string;
  num_items: number;
  /** The number of items inserted or deleted since the last compaction. */
  num_changed: number;
  is_compacting: boolean;
  codebook_sizes: Array<number>;
  /** The type of item ids; null if there are no items. */
  item_ids: "numbers" | "text" | null;
  /** The attributes and their types. */
  columns: Record<string, string>;
  /** The attributes from which the codes of a new item are computed; the list may be empty. */
  text_columns: Array<string>;
  writable: boolean;
  /** The reason why the catalog is not writable, or why new items must be sent with codes. */
  reason: string | null;
  snapshots: Array<SnapshotAnswer>;
}

/** The effect of a batch. The batch is on disk, and the next request sees it. */
export interface ChangeAnswer {
  /** Items that are new. */
  inserted: number;
  /** Items that existed before. */
  updated: number;
  deleted: number;
  /** Items to delete that did not exist, with `?missing=ignore`. */
  ignored: number;
  /** The number of the version with this change. `index_version` then ends in `+number`. */
  number: number;
}

/** The next message of a chat. */
export interface ChatAnswer {
  id: string;
  created: number;
  model: string;
  choices: Array<ChatChoice>;
  usage: Usage;
  object?: string;
  /** For a JSON Schema: its keywords that were ignored or bounded, if there are any. */
  schema_notes?: Array<SchemaNoteBody>;
}

/** A request for the next message of a chat. */
export interface ChatBody {
  model: string;
  /** The largest number of tokens of a text, including its end. Default: 256, or as many as fit the model. */
  max_tokens?: number | null;
  /** The temperature of sampling. Default: 1; with 0 the likeliest token is always taken. */
  temperature?: number | null;
  /** Sample only among the likeliest tokens with this total probability. */
  top_p?: number | null;
  /** Sample only among this many of the likeliest tokens. */
  top_k?: number | null;
  /** The seed of sampling; the same seed gives the same texts. Default: a new seed. */
  seed?: number | null;
  /** The number of texts for each prompt: samples, or the best beams. Default: 1. */
  n?: number | null;
  /** The number of beams of an exact search, in place of sampling. */
  beam_width?: number | null;
  /** A text ends before the first of these; up to 4, of 1 KB each. */
  stop?: string | Array<string> | null;
  /** Send pieces of the texts as server-sent events. */
  stream?: boolean | null;
  stream_options?: StreamOptions | null;
  /** With `json_schema`, texts are instances of that schema; with `json_object`, JSON objects. */
  response_format?: ResponseFormat | null;
  /** A JSON Schema, or its text: texts are its instances. */
  guided_json?: Record<string, unknown> | boolean | string | null;
  /** A pattern that the whole text matches. */
  guided_regex?: string | null;
  /** The text is one of these. */
  guided_choice?: Array<string> | null;
  /** Parts of the text: a text, or an object with one of `regex`, `json_schema`, `choices`, `template`, `free_text` (an object with `stop`, `max_length`). */
  guided_template?: Array<unknown> | null;
  /** A constraint as vLLM names it: `json`, `regex`, `choice` or `json_object`. */
  structured_outputs?: StructuredOutputs | null;
  /** Append forced text at once: fewer calls of the model. */
  retokenize?: boolean | null;
  /** Changes nothing. */
  user?: string | null;
  best_of?: number | null;
  echo?: boolean | null;
  frequency_penalty?: number | null;
  logit_bias?: Record<string, number> | null;
  logprobs?: boolean | number | null;
  presence_penalty?: number | null;
  suffix?: string | null;
  top_logprobs?: number | null;
  messages: Array<Message>;
  /** As `max_tokens`. */
  max_completion_tokens?: number | null;
}

export interface ChatChoice {
  index: number;
  message: ChatMessage;
  finish_reason: string;
  logprobs?: null;
}

export interface ChatMessage {
  content: string;
  role?: string;
  refusal?: null;
}

/** Texts, or items, best first. */
export interface CompletionAnswer {
  id: string;
  created: number;
  model: string;
  choices: Array<CompletionChoice>;
  object?: string;
  /** For items: the version of the index. */
  system_fingerprint?: string | null;
  /** Tokens of texts; null for items. */
  usage?: Usage | null;
  /** For a JSON Schema: its keywords that were ignored or bounded, if there are any. */
  schema_notes?: Array<SchemaNoteBody>;
}

/** A request for texts after prompts. */
export interface CompletionBody {
  model: string;
  /** The largest number of tokens of a text, including its end. Default: 256, or as many as fit the model. */
  max_tokens?: number | null;
  /** The temperature of sampling. Default: 1; with 0 the likeliest token is always taken. */
  temperature?: number | null;
  /** Sample only among the likeliest tokens with this total probability. */
  top_p?: number | null;
  /** Sample only among this many of the likeliest tokens. */
  top_k?: number | null;
  /** The seed of sampling; the same seed gives the same texts. Default: a new seed. */
  seed?: number | null;
  /** The number of texts for each prompt: samples, or the best beams. Default: 1. */
  n?: number | null;
  /** The number of beams of an exact search, in place of sampling. */
  beam_width?: number | null;
  /** A text ends before the first of these; up to 4, of 1 KB each. */
  stop?: string | Array<string> | null;
  /** Send pieces of the texts as server-sent events. */
  stream?: boolean | null;
  stream_options?: StreamOptions | null;
  /** With `json_schema`, texts are instances of that schema; with `json_object`, JSON objects. */
  response_format?: ResponseFormat | null;
  /** A JSON Schema, or its text: texts are its instances. */
  guided_json?: Record<string, unknown> | boolean | string | null;
  /** A pattern that the whole text matches. */
  guided_regex?: string | null;
  /** The text is one of these. */
  guided_choice?: Array<string> | null;
  /** Parts of the text: a text, or an object with one of `regex`, `json_schema`, `choices`, `template`, `free_text` (an object with `stop`, `max_length`). */
  guided_template?: Array<unknown> | null;
  /** A constraint as vLLM names it: `json`, `regex`, `choice` or `json_object`. */
  structured_outputs?: StructuredOutputs | null;
  /** Append forced text at once: fewer calls of the model. */
  retokenize?: boolean | null;
  /** Changes nothing. */
  user?: string | null;
  best_of?: number | null;
  echo?: boolean | null;
  frequency_penalty?: number | null;
  logit_bias?: Record<string, number> | null;
  logprobs?: boolean | number | null;
  presence_penalty?: number | null;
  suffix?: string | null;
  top_logprobs?: number | null;
  /** A text or a list of tokens, or a list of several texts or several lists of tokens. */
  prompt: string | Array<string | number | Array<number>>;
}

export interface CompletionChoice {
  index: number;
  text: string;
  /** `stop`: the text is complete, or ended at a stop. `length`: it was cut off. */
  finish_reason: string | null;
  logprobs: null;
  /** For items: the id of the item; `text` has it as text. */
  item_id?: number | string | null;
  /** For items: the score, as in `scores` of `/v1/recommend`. */
  score?: number | null;
}

/** The body of every failure. */
export interface ErrorAnswer {
  error: ErrorDetail;
}

export interface ErrorDetail {
  /** The class of the error, such as `UnknownRuleError`. */
  type: string;
  /** A text that says what was expected, what was sent, and how to fix it. */
  message: string;
  /** With 408, 429, 431 and 503: the reason as the metrics count it, such as `queue_full`. */
  reason?: string | null;
  /** With 429 and 503: the time after which to try again; `Retry-After` has it in whole seconds. */
  retry_after_ms?: number | null;
  /** For a batch of items: what is wrong with each line, by its number. */
  lines?: Record<string, string> | null;
}

/** The progress in the followed source of the items. Servers that began alike and have the same position have the same items. */
export interface FeedStatus {
  /** The name of the source. */
  source: string;
  /** The place in the source up to which all changes are made. */
  position: Record<string, unknown>;
  /** The age, in seconds, of the oldest change that may be missing; null before the first look. */
  lag_s: number | null;
  /** The reason why following stopped; it is tried again. */
  error?: string | null;
}

/** An item, its attributes, and the rules that allow it. */
export interface FoundItem {
  item_id: number | string;
  attributes: Record<string, unknown>;
  /** Whether the item can be recommended. */
  in_index: boolean;
  /** The rules that allow it. */
  rules: Array<string>;
  /** Whether the rules and the filter of the query allow the item. */
  allowed: boolean;
}

/** Items found, and how many items of the whole index the rules and the filter of the query allow. */
export interface FoundItems {
  items: Array<FoundItem>;
  num_allowed: number;
  /** The number of items of the index. */
  num_items: number;
  /** The column that is searched: `title`, or `name`, or the first column of text; null: ids only. */
  title_column: string | null;
  index_version: string;
}

/** The process is up. */
export interface Health {
  alive?: boolean;
}

/** The items that a user took, and the newest items that the user had before. */
export interface InteractionBody {
  /** Item ids, oldest first; only the last few are counted. */
  history?: Array<number | string>;
  item_id: number | string;
}

/** The counted pairs of items. They are on disk. */
export interface InteractionsAnswer {
  /** The number of pairs of items that were counted in the item memory. */
  pairs: number;
}

/** Interactions to count in the item memory. */
export interface InteractionsBody {
  interactions: Array<InteractionBody>;
}

/** An item that may be recommended. */
export interface ItemAnswer {
  item_id: number | string;
  /** Its Semantic ID, one code for each level. */
  codes: Array<number>;
  attributes: Record<string, unknown>;
  /** The rules that allow it. */
  rules: Array<string>;
  index_version: string;
}

/** One item of a batch: a line of `application/x-ndjson`, or an object of a JSON list. Its attributes are further fields. */
export interface ItemBody {
  item_id: number | string;
  /** Its Semantic ID, one code for each level. By default it is computed from the item's text. */
  codes?: Array<number> | null;
  /** The item's vector, in place of text, if the Semantic IDs were fitted on your own vectors. */
  vector?: Array<number> | null;
  [attribute: string]: unknown;
}

/** A request for items, as `/v1/recommend` answers it, for clients of OpenAI. */
export interface ItemCompletionBody {
  /** The user of the history, for models with user tokens. `read_user` of the answer says whether the model read it. */
  user?: number | string | null;
  /** Names of rules of the catalog. Every item returned is allowed by all of them. */
  rules?: Array<string>;
  /** Items that must not be returned, on top of the rules. */
  deny_item_ids?: Array<number | string>;
  /** `full`: log probabilities over each level's whole codebook. `allowed`: over the legal codes only. `vocabulary`: over all tokens of the model, as in `generate` of transformers, which takes longer. */
  scoring?: "full" | "allowed" | "vocabulary";
  /** An expression over rule names that must hold too: `&` and, `|` or, `-` and not, and parentheses, with the precedence of Python, such as `(fresh | promo) & in_stock - adult`. A `-` needs a space on its left. */
  filter?: string | null;
  /** The source of the ranking: `model` is the search, `memory` the item memory without a search, `fused` both. Default: `fused` if the server has an item memory, else `model`. */
  channel?: "model" | "memory" | "fused" | null;
  /** The boosts that are added to the score, by name, each with its weight: an item's score is the channel's plus the weighted sum of its boosts. */
  boosts?: Record<string, number>;
  /** For each column of the catalog, the largest number of items with the same value. Items without a value are not limited. */
  at_most?: Record<string, number>;
  /** For each rule, the number of its items that the list must have, if so many are allowed; see `unmet`. Each rule's best items are taken first; the rest of the list is filled best first. */
  at_least?: Record<string, number>;
  /** Whether items of the history may be returned too. */
  keep_history?: boolean;
  /** Milliseconds from the arrival of the request within which an answer is useful. Default: the server's objective. A request that cannot meet its deadline is rejected with 429, as early as that is clear. */
  deadline_ms?: number | null;
  model: string;
  /** The history: item ids, oldest first; empty for none. */
  prompt: Array<number | string> | string;
  /** The largest number of items to return. Default: 1. */
  n?: number | null;
  /** `num_beams` of `/v1/recommend`. */
  beam_width?: number | null;
  /** This field has no effect, because the number of codes of an item is fixed. */
  max_tokens?: number | null;
  /** Must be 0 or absent, because items are ranked, not sampled. */
  temperature?: number | null;
  stream?: boolean | null;
}

/** A JSON Schema in `response_format`; its name, description and `strict` change nothing. */
export interface JsonSchemaFormat {
  schema: unknown;
}

/** The numbers of beams that the proofs of recent requests needed. */
export interface LearntWidths {
  /** The number of items that the search ranks. */
  num_items: number;
  /** The share of the items that the rules allow, to the nearest power of two. */
  share: number;
  scoring: string;
  /** The number of beams of the next first pass, for each level but the last. */
  widths: Array<number>;
}

/** The beams that the search kept at one level, best first. */
export interface LevelAnswer {
  /** The code that each beam took. */
  codes: Array<number>;
  /** The beam of the previous level that each beam extends. */
  parents: Array<number>;
  /** The log probability of each beam so far. */
  scores: Array<number>;
  /** The number of Semantic IDs of the index below each beam's prefix, allowed or not. */
  num_sids: Array<number>;
  /** The pass of the search that first kept each beam, from 1. */
  passes: Array<number>;
}

/** A message of a chat. */
export interface Message {
  role: string;
  /** Text, or a list of parts of type `text`. */
  content: string | Array<TextPart>;
  name?: string | null;
}

/** The model that answers requests from now on. */
export interface ModelAnswer {
  /** A hash of the model's files. */
  model_version: string | null;
  /** The hash of the model that was replaced. */
  previous_version: string | null;
  /** The time that loading and warming up the model took. */
  seconds: number;
}

/** A model to serve from now on. */
export interface ModelBody {
  /** The directory of the model on the server. By default the directory of the served model is read again. */
  directory?: string | null;
}

export interface ModelEntry {
  id: string;
  created: number;
  object?: string;
  owned_by?: string;
}

/** The names that `model` of a request may have. */
export interface ModelsAnswer {
  data: Array<ModelEntry>;
  object?: string;
}

/** The body of every failure of these routes. */
export interface OpenAIError {
  error: OpenAIErrorDetail;
}

export interface OpenAIErrorDetail {
  message: string;
  /** `invalid_request_error`, `rate_limit_error` or `server_error`. */
  type: string;
  /** The field of the body that is wrong, if it is one. */
  param: string | null;
  /** The class of the error; with 404, 408, 413, 429 and 503 the reason. */
  code: string;
}

/** The readiness of the server, with its index and rules. */
export interface Readiness {
  ready: boolean;
  /** The reason why the server is not ready, such as a worker that hangs. */
  reason: string | null;
  index_version: string | null;
  /** A hash of the model's files; null if the model was made in memory. */
  model_version?: string | null;
  num_items: number;
  /** The number of items that each rule allows now; empty without a key, if the server has keys. */
  rules: Record<string, number>;
  /** A hash of the rules and boosts: servers with the same ones have the same hash. */
  rules_version?: string | null;
  /** Threads of each worker's matrix products. */
  threads: number | null;
  /** The language model of `/v1/completions`. */
  text_model: string | null;
  /** The number of HTTP processes that accept connections; 0 if the server is one process. */
  http_workers?: number;
  /** The precision of matrix products; for others than float32, also how far answers differ. */
  precision?: string | null;
  /** What was measured and chosen for this machine: threads, precision, products, CUDA graphs. */
  tuning?: Record<string, string>;
  /** The numbers of beams that each kind of request needs. */
  search_widths?: Array<LearntWidths>;
  /** The progress in the followed source of items; null if the server follows none. */
  feed?: FeedStatus | null;
}

/** The largest part of an item's score. */
export interface ReasonAnswer {
  /** `model`, `transition` or `text`; `popular` if nothing found the item. */
  channel: string;
  /** The item of the history that led to the item; null for `model` and `popular`. */
  item_id: number | string | null;
  score: number;
}

/** Items, best first, all of them in the index and allowed by every rule of the request. */
export interface RecommendAnswer {
  /** The items, best first. */
  item_ids: Array<number | string>;
  /** The Semantic ID of each item: one code per level. */
  codes: Array<Array<number>>;
  /** If `model` ranked, log probabilities: items that share a SID share a score. Otherwise sums of features, which can be compared only within one answer. */
  scores: Array<number>;
  /** The source of the ranking: `model`, `memory` or `fused`. */
  channel: string;
  /** The largest part of each score, one for each item; empty if `model` ranked. A short answer of `memory` or `fused` is filled up with other allowed items: they come last, the most popular first, with the channel `popular`. */
  reasons: Array<ReasonAnswer>;
  /** The number of items that are returned, `num_items` or fewer; 0 if none is left, see `empty_rules`. */
  num_valid: number;
  /** If no item is left: the rule, the pair of rules, or the smallest set of rules that together allow no item; parts of `filter` are given as text. If the rules alone allow items, `- deny_item_ids` and `- history`, which exclude them, are named like rules. Empty if an item is left. */
  empty_rules: Array<string>;
  /** The largest number of beams of a level in the search's first pass; 0 without a search. */
  num_beams: number;
  /** Whether the items that the model found are proved to be its best allowed ones; `fused` ranks only these. Always true, unless the request or the server sets a number of beams, or the proof needs more than `engine.max_rows` prefixes of a level. */
  exact: boolean;
  /** The number of the model's first items that are proved to be its best allowed ones. */
  num_exact: number;
  /** Rows that the model computed: one for the prompt, and one for each beam of each level. */
  rows: number;
  /** The number of items of the history that the model saw, deleted ones too until a compaction. */
  num_history_used: number;
  /** The number of items of the history that the answer leaves out; 0 with `keep_history`. */
  num_history_left_out: number;
  /** Whether the model read the user's token. */
  read_user: boolean;
  /** Ids of the history that the index does not have. */
  ignored_history: Array<number | string>;
  /** The version of the index that answered. */
  index_version: string;
  /** 1 at start, one more after each reload of the rules. */
  rules_generation: number | null;
  /** The number of requests that ran together. */
  batch_size: number;
  /** With `explain`: the beams of each level; empty if no search ran. Their scores include the largest boost below each beam. */
  levels?: Array<LevelAnswer>;
  /** The weighted sum of each item's boosts, which `scores` includes; empty without boosts. */
  boosts?: Array<number>;
  /** For each rule of `at_least` that is not met, the number of items that are missing. */
  unmet?: Record<string, number>;
  /** Denied ids that the index does not have. */
  ignored_deny_item_ids: Array<number | string>;
  timings_ms: TimingsAnswer;
  /** The scores without the boosts; equal to `scores` if the request has none. */
  model_scores?: Array<number>;
}

/** A request. Every field has a default: `{}` asks for items without a history. */
export interface RecommendBody {
  /** Item ids, oldest first. Ids that the index does not have are left out and reported. */
  history?: Array<number | string>;
  /** The user of the history, for models with user tokens. `read_user` of the answer says whether the model read it. */
  user?: number | string | null;
  /** The largest number of items to return. If the rules allow fewer items, fewer are returned. */
  num_items?: number;
  /** Names of rules of the catalog. Every item returned is allowed by all of them. */
  rules?: Array<string>;
  /** Items that must not be returned, on top of the rules. */
  deny_item_ids?: Array<number | string>;
  /** A fixed number of beams. It is raised to `num_items` if it is smaller, because a beam finds one item. Default: the server's number, or as many beams as it takes to prove that the answer is the best allowed list. */
  num_beams?: number | null;
  /** `full`: log probabilities over each level's whole codebook. `allowed`: over the legal codes only. `vocabulary`: over all tokens of the model, as in `generate` of transformers, which takes longer. */
  scoring?: "full" | "allowed" | "vocabulary";
  /** An expression over rule names that must hold too: `&` and, `|` or, `-` and not, and parentheses, with the precedence of Python, such as `(fresh | promo) & in_stock - adult`. A `-` needs a space on its left. */
  filter?: string | null;
  /** The source of the ranking: `model` is the search, `memory` the item memory without a search, `fused` both. Default: `fused` if the server has an item memory, else `model`. */
  channel?: "model" | "memory" | "fused" | null;
  /** The boosts that are added to the score, by name, each with its weight: an item's score is the channel's plus the weighted sum of its boosts. */
  boosts?: Record<string, number>;
  /** For each column of the catalog, the largest number of items with the same value. Items without a value are not limited. */
  at_most?: Record<string, number>;
  /** For each rule, the number of its items that the list must have, if so many are allowed; see `unmet`. Each rule's best items are taken first; the rest of the list is filled best first. */
  at_least?: Record<string, number>;
  /** Whether items of the history may be returned too. */
  keep_history?: boolean;
  /** Whether the answer has `levels`. Such requests run in batches of their own, and take longer. */
  explain?: boolean;
  /** Milliseconds from the arrival of the request within which an answer is useful. Default: the server's objective. A request that cannot meet its deadline is rejected with 429, as early as that is clear. */
  deadline_ms?: number | null;
}

export interface ResponseFormat {
  /** `text`, `json_object` or `json_schema`. */
  type: string;
  json_schema?: JsonSchemaFormat | null;
}

/** A snapshot to go back to. */
export interface RollbackBody {
  /** The name of the snapshot. Default: the newest one. */
  snapshot?: string | null;
}

/** A rule in use. */
export interface RuleAnswer {
  name: string;
  where: string;
  refresh_s: number | null;
  /** The number of items that the rule allows. */
  num_items: number;
  /** The reason why the last evaluation failed; the filter of the evaluation before stays in use. */
  error: string | null;
  /** Seconds since it was last evaluated over all items. */
  age_s: number | null;
}

/** A rule. */
export interface RuleBody {
  /** An SQL predicate over the columns, such as `price < 20`. */
  where: string;
  /** The interval at which the rule is evaluated again, such as `60s`. By default it is evaluated when items change or rules are reloaded. */
  refresh?: string | null;
}

/** All rules in use. */
export interface RulesAnswer {
  rules: Array<RuleAnswer>;
}

/** A keyword of a JSON Schema that the texts do not hold to in full. */
export interface SchemaNoteBody {
  /** `ignored`: texts need not obey the keyword. `bounded`: some valid texts are never written. */
  treatment: string;
  /** The keyword; empty for a value that the schema does not describe. */
  keyword: string;
  /** The JSON pointer of the schema that has it. */
  pointer: string;
  /** The depth to which values nest, or the number of times that a `$ref` is followed. */
  depth?: number | null;
}

/** A batch that took more than five times the median of those before it. */
export interface SlowBatchAnswer {
  /** Seconds since 1970. */
  ended_at: number;
  worker: number;
  seconds: number;
  median_s: number;
  requests: number;
  /** The number of tokens of all prompts. */
  tokens: number;
  /** The number of beams of all requests together. */
  beam_rows: number;
  prefill_s: number;
  rounds_s: number;
  constrain_s: number;
  /** The CPU time of the thread; far below `seconds` if it had no core, or waited for a lock. */
  cpu_s: number;
  /** The number of times that the thread gave up its core: for a lock, the disk, other threads. */
  waits: number;
  /** The number of times that the system gave its core to something else. */
  preempted: number;
  /** The number of pages that were not in memory. */
  faults: number;
}

/** The last slow batches, the oldest first. */
export interface SlowBatchesAnswer {
  batches: Array<SlowBatchAnswer>;
}

/** A saved state of all items and attributes. */
export interface SnapshotAnswer {
  name: string;
  num_items: number;
  index_version: string;
  /** When, in UTC. */
  created: string;
  /** The position in the followed source that belongs to the snapshot; empty without a source. */
  feed?: Record<string, unknown>;
}

/** A snapshot to make. */
export interface SnapshotBody {
  /** A letter or digit, and up to 63 letters, digits, `-`, `_` or `.`. */
  name: string;
}

export interface StreamOptions {
  include_usage?: boolean;
}

/** A constraint under the names of vLLM, exactly one. */
export interface StructuredOutputs {
  /** A JSON Schema, or its text: texts are its instances. */
  json?: Record<string, unknown> | boolean | string | null;
  /** A pattern that the whole text matches. */
  regex?: string | null;
  /** The text is one of these. */
  choice?: Array<string> | null;
  /** If true, texts are JSON objects. */
  json_object?: boolean | null;
}

export interface TextPart {
  type: "text";
  text: string;
}

/** Milliseconds of each stage. `prefill`, `rounds` and `constrain` are those of the whole batch. */
export interface TimingsAnswer {
  /** Looking up ids, resolving rules. */
  prepare: number;
  /** Waiting for a batch. */
  queue: number;
  /** The forward pass of the prompts. */
  prefill: number;
  /** The forward passes of the beams. */
  rounds: number;
  /** Choosing legal codes. */
  constrain: number;
  /** From codes to item ids. */
  postprocess: number;
  /** The sum of all stages. */
  total: number;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
}

/** The items that a user took, as the log of interactions has them. */
export interface UserAnswer {
  user: string;
  /** The items, oldest first, including those that are no longer in the index. */
  history: Array<number | string>;
}

/** A failure: what the server answered, or that it did not answer. */
export class LeafbeamError extends Error {
  /** status: 0 without an answer. code: the class of the server's error. lines: what is wrong with each line of a batch. */
  constructor(
    message: string,
    readonly status: number,
    readonly code: string,
    readonly requestId: string,
    readonly lines: Record<string, string> = {},
  ) {
    super(message);
    this.name = "LeafbeamError";
  }
}

export interface Options {
  /** What `leafbeam keys add` printed. */
  key?: string;
  /** Milliseconds of one call with its retries. */
  deadlineMs?: number;
  /** At most, of one call. */
  attempts?: number;
}

interface Sent {
  body?: unknown;
  query?: object;
  key?: string;
}

/** A value as one part of a path. */
function part(value: string | number): string {
  if (["", ".", ".."].includes(String(value))) throw new RangeError(`${JSON.stringify(value)} cannot be a part of a URL`);
  return encodeURIComponent(value);
}

/** A client of `leafbeam serve`. Ids beyond 2^53 lose digits in JavaScript: use ids of text. */
export class LeafbeamClient {
  private readonly url: string;

  constructor(url: string, private readonly options: Options = {}) {
    this.url = url.replace(/\/+$/, "");
  }

  /** Recommend items under rules: POST /v1/recommend */
  recommend(body: RecommendBody): Promise<RecommendAnswer> {
    return this.send("POST", "/v1/recommend", { body });
  }

  /** Count interactions in the item memory (with --learn): POST /v1/interactions */
  countInteractions(body: InteractionsBody, key: string = crypto.randomUUID()): Promise<InteractionsAnswer> {
    return this.send("POST", "/v1/interactions", { body, key });
  }

  /** Find items by title or id, and the rules that allow them: GET /v1/items */
  findItems(query: { query?: string; id?: Array<string>; limit?: number; rule?: Array<string>; filter?: string } = {}): Promise<FoundItems> {
    return this.send("GET", "/v1/items", { query });
  }

  /** Insert or replace items, all lines or none: PUT /v1/items */
  putItems(body: ItemBody | Array<ItemBody>, key: string = crypto.randomUUID()): Promise<ChangeAnswer> {
    return this.send("PUT", "/v1/items", { body, key });
  }

  /** Change the attributes or codes that each line has: PATCH /v1/items */
  patchItems(body: ItemBody | Array<ItemBody>, key: string = crypto.randomUUID()): Promise<ChangeAnswer> {
    return this.send("PATCH", "/v1/items", { body, key });
  }

  /** Remove the items that the lines name: DELETE /v1/items */
  deleteItems(body: ItemBody | Array<ItemBody>, query: { missing?: "error" | "ignore" } = {}, key: string = crypto.randomUUID()): Promise<ChangeAnswer> {
    return this.send("DELETE", "/v1/items", { body, query, key });
  }

  /** Return the items that a user took (with --set users): GET /v1/users/{user} */
  getUser(user: string | number): Promise<UserAnswer> {
    return this.send("GET", "/v1/users/" + part(user), {});
  }

  /** Return an item, its codes and its attributes: GET /v1/items/{item_id} */
  getItem(itemId: string | number): Promise<ItemAnswer> {
    return this.send("GET", "/v1/items/" + part(itemId), {});
  }

  /** Remove an item: DELETE /v1/items/{item_id} */
  deleteItem(itemId: string | number, key: string = crypto.randomUUID()): Promise<ChangeAnswer> {
    return this.send("DELETE", "/v1/items/" + part(itemId), { key });
  }

  /** Return the size, columns and snapshots of the catalog: GET /v1/catalog */
  getCatalog(): Promise<CatalogAnswer> {
    return this.send("GET", "/v1/catalog", {});
  }

  /** Read the table of items again, and evaluate all rules: POST /v1/catalog/reload */
  reloadCatalog(): Promise<RulesAnswer> {
    return this.send("POST", "/v1/catalog/reload", {});
  }

  /** Merge all changes in the background: POST /v1/catalog/compact */
  compactCatalog(): Promise<CatalogAnswer> {
    return this.send("POST", "/v1/catalog/compact", {});
  }

  /** Save all items under a name: POST /v1/catalog/snapshot */
  saveSnapshot(body: SnapshotBody): Promise<SnapshotAnswer> {
    return this.send("POST", "/v1/catalog/snapshot", { body });
  }

  /** Go back to a snapshot: POST /v1/catalog/rollback */
  rollBack(body: RollbackBody, key: string = crypto.randomUUID()): Promise<ChangeAnswer> {
    return this.send("POST", "/v1/catalog/rollback", { body, key });
  }

  /** Remove a snapshot: DELETE /v1/catalog/snapshots/{name} */
  deleteSnapshot(name: string | number): Promise<CatalogAnswer> {
    return this.send("DELETE", "/v1/catalog/snapshots/" + part(name), {});
  }

  /** Return all rules: GET /v1/rules */
  listRules(): Promise<RulesAnswer> {
    return this.send("GET", "/v1/rules", {});
  }

  /** Return a rule: GET /v1/rules/{name} */
  getRule(name: string | number): Promise<RuleAnswer> {
    return this.send("GET", "/v1/rules/" + part(name), {});
  }

  /** Add or replace a rule, once it can be evaluated: PUT /v1/rules/{name} */
  putRule(name: string | number, body: RuleBody): Promise<RuleAnswer> {
    return this.send("PUT", "/v1/rules/" + part(name), { body });
  }

  /** Remove a rule made by PUT: DELETE /v1/rules/{name} */
  deleteRule(name: string | number): Promise<RuleAnswer> {
    return this.send("DELETE", "/v1/rules/" + part(name), {});
  }

  /** Return all boosts: GET /v1/boosts */
  listBoosts(): Promise<BoostsAnswer> {
    return this.send("GET", "/v1/boosts", {});
  }

  /** Return a boost: GET /v1/boosts/{name} */
  getBoost(name: string | number): Promise<BoostAnswer> {
    return this.send("GET", "/v1/boosts/" + part(name), {});
  }

  /** Add or replace a boost, once it can be evaluated: PUT /v1/boosts/{name} */
  putBoost(name: string | number, body: BoostBody): Promise<BoostAnswer> {
    return this.send("PUT", "/v1/boosts/" + part(name), { body });
  }

  /** Remove a boost made by PUT: DELETE /v1/boosts/{name} */
  deleteBoost(name: string | number): Promise<BoostAnswer> {
    return this.send("DELETE", "/v1/boosts/" + part(name), {});
  }

  /** Load a model, and answer later requests by it: POST /v1/model/reload */
  loadModel(body: ModelBody): Promise<ModelAnswer> {
    return this.send("POST", "/v1/model/reload", { body });
  }

  /** Return the batches that took over five times the median: GET /v1/slow-batches */
  listSlowBatches(): Promise<SlowBatchesAnswer> {
    return this.send("GET", "/v1/slow-batches", {});
  }

  /** Generate texts or items, for clients of OpenAI: POST /v1/completions */
  complete(body: CompletionBody | ItemCompletionBody): Promise<CompletionAnswer> {
    return this.send("POST", "/v1/completions", { body });
  }

  /** Generate the next message of a chat: POST /v1/chat/completions */
  chat(body: ChatBody): Promise<ChatAnswer> {
    return this.send("POST", "/v1/chat/completions", { body });
  }

  /** Return the names that `model` may have: GET /v1/models */
  listModels(): Promise<ModelsAnswer> {
    return this.send("GET", "/v1/models", {});
  }

  /** Return whether the process runs: GET /healthz */
  getHealth(): Promise<Health> {
    return this.send("GET", "/healthz", {});
  }

  /** Return whether the server answers requests now: GET /readyz */
  getReadiness(): Promise<Readiness> {
    return this.send("GET", "/readyz", {});
  }

  /** Return the metrics for Prometheus: GET /metrics */
  getMetrics(): Promise<string> {
    return this.send("GET", "/metrics", {});
  }

  /** Send a call; again after 429 and 503, and where it only reads or has a key and its answer was lost. */
  private async send<T>(method: string, path: string, { body, query = {}, key }: Sent): Promise<T> {
    const { deadlineMs = 30_000, attempts = 5 } = this.options;
    const until = performance.now() + deadlineMs;
    const headers: Record<string, string> = {};
    if (body !== undefined) headers["content-type"] = "application/json";
    if (key !== undefined) headers["idempotency-key"] = key;
    if (this.options.key !== undefined) headers["authorization"] = `Bearer ${this.options.key}`;
    const values = Object.entries(query).flatMap(([name, value]) => [value].flat().map((one) => [name, String(one)]));
    const url = `${this.url}${path}${values.length ? `?${new URLSearchParams(values)}` : ""}`;
    const isRepeatable = method === "GET" || key !== undefined || path === "/v1/recommend";
    for (let attempt = 1;; attempt++) {
      let failure: LeafbeamError;
      let pauseMs = Math.random() * Math.min(100 * 2 ** (attempt - 1), 10_000);
      let isWorthIt = isRepeatable;
      try {
        const signal = AbortSignal.timeout(Math.max(1, until - performance.now()));
        const init: RequestInit = { method, headers, signal, redirect: "manual" };
        const answer = await fetch(url, body === undefined ? init : { ...init, body: JSON.stringify(body) });
        const isJson = answer.headers.get("content-type")?.startsWith("application/json") ?? false;
        const content = isJson ? await answer.json() : await answer.text();
        if (answer.ok || path === "/readyz") return content as T;
        const error = (content as { error?: Partial<ErrorDetail> }).error ?? {};
        const says = error.message ?? "this is no answer of leafbeam";
        const id = answer.headers.get("x-request-id") ?? "";
        failure = new LeafbeamError(
          `${method} ${path}: the server answered ${answer.status}: ${says}`,
          answer.status,
          error.type ?? `http_${answer.status}`,
          id,
          error.lines ?? {},
        );
        isWorthIt = answer.status === 429 || answer.status === 503;
        pauseMs += error.retry_after_ms ?? 0;
      } catch (error) {
        failure = new LeafbeamError(`${method} ${path}: no whole answer (${error})`, 0, "no_answer", "");
      }
      if (!isWorthIt || attempt >= attempts || performance.now() + pauseMs >= until) throw failure;
      await new Promise((resolve) => setTimeout(resolve, pauseMs));
    }
  }
}
