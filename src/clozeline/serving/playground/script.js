"use strict";
// All text from the server is set as text, never as markup; the key is kept in this page only.
const find = (selector, parent = document) => parent.querySelector(selector);
const make = (tag, parent, text = "", name = "") => {
  const node = document.createElement(tag);
  node.textContent = text;
  if (name) node.className = name;
  parent.append(node);
  return node;
};
let key = "";

class Refusal extends Error {
  constructor(told) {
    super(told.message);
    this.told = told;
  }
}

const GONE = {
  message: "the server does not answer",
  given: "no connection",
  expected: "a running server",
  do: "check that the server runs, then reload this page",
};

// Errors of /embed have the form of text-embeddings-inference: one sentence.
function toldIn(error) {
  if (typeof error !== "string") return error;
  const [, message, given, expected, remedy] = error.match(/^(.*) \(given: (.*); expected: (.*); do: (.*)\)$/s);
  return { message, given, expected, do: remedy };
}

async function ask(path, body) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  const started = performance.now();
  const answer = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers })
    .catch(() => { throw new Refusal(GONE); });
  const content = await answer.json();
  if (!answer.ok) {
    if (answer.status === 401) find("#key").hidden = false;
    throw new Refusal(toldIn(content.error));
  }
  return { content, headers: answer.headers, roundTrip: performance.now() - started };
}

// Errors name fields as the API does, and count from 0; the page shows the label of the field instead.
function titleOf(place, parent) {
  const fields = [...parent.querySelectorAll("[data-param]")].filter((one) => !one.disabled);
  for (const name of [place, place?.replace(/\[\d+\]$/, "")]) {
    const called = fields.filter((one) => one.dataset.param.split(" ").includes(name));
    if (called.length === 1) return `“${find(`label[for="${called[0].id}"]`, parent).textContent}”`;
  }
  return "";
}

function inWords(error, parent) {
  if (!(error instanceof Refusal)) return error.message;
  const { message, given, expected, do: remedy } = error.told;
  const [name, place] = message.match(/^`(.*?)`/) ?? [];
  const title = titleOf(place, parent) || (place?.startsWith("inputs") ? "the text" : name);
  const said = name ? message.replace(name, () => title) : message;
  return `${said}. Given: ${given}. Expected: ${expected}. What to do: ${remedy}.`;
}

function tell(parent, { headers, roundTrip }) {
  const name = headers.get("x-model");
  const spent = ["tokenization", "queue", "inference"].map((part) => `${part} ${headers.get(`x-${part}-time`)}`);
  make("p", parent, `${headers.get("x-total-time")} ms in the server (${spent.join(", ")}), ${roundTrip.toFixed(1)} ms with `
    + `the network · ${headers.get("x-compute-tokens")} tokens · ${name}, version `
    + `${headers.get("x-model-version")}, graph ${headers.get("x-model-sha256").slice(0, 12)}`, "told");
}

function ranking(parent, rows, choose) {
  const list = make("ol", parent);
  for (const { name, score, given } of rows) {
    const item = make("li", list, "", given ? "given" : "");
    const label = make(choose ? "button" : "span", item, name, "name");
    if (choose) {
      label.type = "button";
      label.title = "Put this word into the sentence";
      label.onclick = () => choose(name);
    }
    const track = make("div", item, "", "track");
    make("div", track, "", "bar").style.width = `${100 * score}%`;
    make("span", item, `${(100 * score).toFixed(1)} %`, "share");
  }
}

// Show the text with its `spans` marked, which are in order; positions count code points, as on the server.
function marked(parent, text, spans) {
  const characters = Array.from(text);
  const part = (start, end) => characters.slice(start, end).join("");
  const line = make("p", parent, "", "marked");
  let place = 0;
  for (const { start, end, kind, title, note } of spans) {
    line.append(part(place, start));
    const mark = make("mark", line, part(start, end), `kind-${kind}`);
    mark.title = title;
    if (note) make("small", mark, note);
    place = end;
  }
  line.append(part(place));
}

async function fill(section, result, { name: model }) {
  const field = find("#fill-text");
  const inputs = field.value;
  const answer = await ask("/fill-mask", { inputs, model, parameters: { top_k: NUM_RANKED } });
  const masks = Array.isArray(answer.content[0]) ? answer.content : [answer.content];
  result.replaceChildren();
  masks.forEach((candidates, place) => {
    make("h3", result, masks.length > 1 ? `Blank ${place + 1} of ${masks.length}` : "Likeliest words");
    const bySequence = new Map(candidates.map((one) => [one.token_str, one.sequence]));
    ranking(result, candidates.map((one) => ({ name: one.token_str, score: one.score })), (word) => {
      field.value = bySequence.get(word);
      field.focus();
    });
    if (masks.length === 1) make("p", result, candidates[0].sequence, "sequence");
  });
  return answer;
}

async function complete(section, result, { name: model }) {
  const inputs = find("#complete-text").value;
  const seed = Math.floor(Math.random() * 2 ** 31);
  const parameters = { max_new_tokens: 32, ...(find("#complete-drawn").checked ? { temperature: 1, seed } : {}) };
  const answer = await ask("/complete", { inputs, model, parameters });
  const { generated_text: generated, finish_reason: reason } = answer.content;
  const [start, end] = [inputs, inputs + generated].map((text) => Array.from(text).length);
  result.replaceChildren();
  marked(result, inputs + generated, [{ start, end, kind: 0, title: "Continuation" }]);
  make("p", result, reason === "stop" ? "The model ended the text here." : "The text may go on.", "told");
  return answer;
}

async function compare(section, result, { name: model }) {
  const inputs = [find("#compare-one").value, find("#compare-other").value];
  const answer = await ask("/embed", { inputs, model });
  const [one, other] = answer.content;
  const cosine = one.reduce((sum, value, place) => sum + value * other[place], 0);
  result.replaceChildren();
  make("p", result, cosine.toFixed(3), "big");
  const track = make("div", result, "", "track");
  make("div", track, "", "bar").style.width = `${100 * Math.max(0, Math.min(1, cosine))}%`;
  make("p", result, "Cosine of the two embeddings: 1 means the same direction, 0 means no similarity.", "told");
  return answer;
}

async function classify(section, result, { name: model, labels, decision_threshold: threshold, reads_pairs: isOfPairs }) {
  const text = find("#classify-text").value;
  const inputs = isOfPairs ? { text, text_pair: find("#classify-other").value } : text;
  const several = threshold !== null && threshold !== undefined;
  const answer = await ask("/classify", { inputs, model, parameters: several ? { labels } : { top_k: NUM_RANKED } });
  const [scores] = answer.content;
  const given = scores.filter((one) => several && one.score > threshold);
  result.replaceChildren();
  make("h3", result, "Likeliest labels");
  ranking(result, scores.slice(0, Math.max(NUM_RANKED, given.length)).map((one) => ({ name: one.label, score: one.score, given: given.includes(one) })));
  if (several) {
    make("p", result, given.length ? `Assigned: ${given.map((one) => one.label).join(", ")}` : "No label scores high enough", "given");
    make("p", result, `The text gets every label that scores above ${(100 * threshold).toFixed(1)} %.`, "told");
  }
  return answer;
}

async function choose(section, result, { name: model }) {
  const labels = find("#choose-labels").value.split(/[,\n]/).map((label) => label.trim()).filter(Boolean);
  const each = find("#choose-each");
  const parameters = {
    candidate_labels: [...new Set(labels)],
    hypothesis_template: find("#choose-template").value,
    multi_label: each.checked && !each.parentElement.hidden,
  };
  const answer = await ask("/zero-shot", { inputs: find("#choose-text").value, model, parameters });
  result.replaceChildren();
  make("h3", result, "Likeliest labels");
  ranking(result, answer.content.map((one) => ({ name: one.label, score: one.score })));
  return answer;
}

async function tag(section, result, { name: model }) {
  const inputs = find("#tag-text").value;
  const answer = await ask("/tag", { inputs, model, parameters: { aggregation_strategy: "first" } });
  const kinds = [...new Set(answer.content.map((one) => one.entity_group))].sort();
  const told = (one) => `${one.entity_group}, ${(100 * one.score).toFixed(1)} %`;
  result.replaceChildren();
  make("h3", result, answer.content.length ? `${answer.content.length} found` : "No entities");
  marked(result, inputs, answer.content.map((one) => (
    { ...one, kind: kinds.indexOf(one.entity_group) % NUM_COLOURS, title: told(one), note: one.entity_group })));
  return answer;
}

async function answer(section, result, { name: model }) {
  const question = find("#answer-question").value;
  const context = find("#answer-context").value;
  const parameters = { top_k: 3, handle_impossible_answer: true };
  const reply = await ask("/answer", { inputs: { question, context }, model, parameters });
  const [best] = reply.content;
  result.replaceChildren();
  make("h3", result, best.answer ? "Likeliest answers" : "The text does not say");
  ranking(result, reply.content.map((one) => ({ name: one.answer || "(no answer)", score: one.score })));
  if (best.answer) marked(result, context, [{ ...best, kind: 0, title: `${(100 * best.score).toFixed(1)} %` }]);
  return reply;
}

const NUM_COLOURS = 6;
const NUM_RANKED = 8;
const ASKED = {
  fill: ["/fill-mask", fill],
  complete: ["/complete", complete],
  compare: ["/embed", compare],
  classify: ["/classify", classify],
  choose: ["/zero-shot", choose],
  tag: ["/tag", tag],
  answer: ["/answer", answer],
};

function prepare(id, models) {
  const section = find(`#${id}`);
  const [route, send] = ASKED[id];
  const able = models.filter((model) => model.routes.includes(route) && (id !== "fill" || model.mask_token));
  // Models that were trained to compare or to choose come before models that predict words.
  const predicts = (model) => [ASKED.fill, ASKED.complete].some(([path]) => model.routes.includes(path));
  able.sort((one, other) => predicts(one) - predicts(other));
  section.hidden = !able.length;
  const choice = find("select", section);
  choice.replaceChildren(...able.map((model) => new Option(`${model.name} (${model.precision})`, model.name)));
  const chosen = () => able.find((model) => model.name === choice.value);
  // Fields for models of one task, or of pairs, are shown only with such a model.
  choice.onchange = () => {
    section.querySelectorAll("[data-task]").forEach((one) => { one.hidden = chosen()?.task !== one.dataset.task; });
    section.querySelectorAll("[data-pairs]").forEach((one) => {
      one.hidden = !chosen()?.reads_pairs;
      find("textarea", one).disabled = one.hidden;
    });
  };
  choice.onchange();
  const result = find(".result", section);
  const button = find("button:not([type])", section);
  find("form", section).onsubmit = async (event) => {
    event.preventDefault();
    if (button.disabled) return; // Enter also submits
    button.disabled = true;
    try {
      tell(result, await send(section, result, chosen()));
    } catch (error) {
      result.replaceChildren();
      make("p", result, inWords(error, section), "wrong");
    }
    button.disabled = false;
  };
  for (const field of section.querySelectorAll("textarea")) {
    field.onkeydown = (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      find("form", section).requestSubmit();
    };
  }
}

function lineage(models) {
  const section = find("#models");
  section.querySelectorAll("details").forEach((one) => one.remove());
  for (const model of models) {
    const details = make("details", section);
    make("summary", details, `${model.name}: ${model.task}, version ${model.version}, ${model.precision}`);
    const list = make("dl", details);
    const rows = {
      "Loaded from": model.source,
      "Version": model.version,
      "Graph": `sha256 ${model.sha256}`,
      "Precision": model.scheme && model.precision === "int8" ? `int8: ${model.scheme}` : model.precision,
      "Family": `${model.family}, hidden size ${model.hidden_size}, vocabulary of ${model.vocab_size} tokens, at most ${model.max_length} tokens in a text`,
      "Exported with": Object.entries(model.versions).map((pair) => pair.join(" ")).join(", "),
      "Requirements lock": `sha256 ${model.lock_sha256}`,
      "Labels": model.labels.join(", "),
    };
    for (const [term, meaning] of Object.entries(rows)) {
      if (!meaning) continue;
      make("dt", list, term);
      make("dd", list, meaning);
    }
  }
  section.hidden = false;
}

const AGAIN_MILLISECONDS = 1000;
let waiting;

async function begin() {
  clearTimeout(waiting);
  const problem = find("#problem");
  try {
    const { models } = (await ask("/models")).content;
    problem.hidden = true;
    find("#key").hidden = true;
    Object.keys(ASKED).forEach((id) => prepare(id, models));
    lineage(models);
  } catch (error) {
    const isEarly = error.told?.code === "not_ready";
    const said = isEarly ? "The models are loading; this page waits for them." : inWords(error, document);
    if (problem.textContent !== said) problem.textContent = said; // screen readers announce each change
    problem.hidden = false;
    if (isEarly) waiting = setTimeout(begin, AGAIN_MILLISECONDS);
  }
}

find("#add-mask").onclick = () => {
  const field = find("#fill-text");
  const { value, selectionStart: start, selectionEnd: end } = field;
  const before = /\S$/.test(value.slice(0, start)) ? " " : "";
  const after = /^[\p{L}\p{N}[]/u.test(value.slice(end)) ? " " : ""; // no space before punctuation
  field.setRangeText(`${before}[MASK]${after}`, start, end, "end");
  field.focus();
};
find("#key").onsubmit = (event) => {
  event.preventDefault();
  key = find("#key-text").value.trim();
  begin();
};
begin();
