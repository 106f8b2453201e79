"use strict";

const STATES = ["stopped", "waiting", "paused", "opening", "idle", "running", "done"];  // the worst first
const REFRESH = 2000, HOUR = 3600, SHORTEST = 300, STEP = 10;
const $ = id => document.getElementById(id);
let streams = [], charts = null, shown = null, token = "";

// Small parts

function make(tag, {text, label, className, ...rest} = {}, ...children) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  if (label) element.dataset.label = label;
  for (const [name, value] of Object.entries(rest)) element.setAttribute(name, value);
  element.append(...children.filter(child => child !== null));
  return element;
}

const number = value => value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
const clock = value => new Date(value).toLocaleTimeString("en-GB");
const plain = value => value === null || value === undefined ? "NULL" : typeof value === "string" ? value : JSON.stringify(value);
const text = value => value === null || value === undefined ? "" : plain(value);

function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 2 * HOUR) return `${Math.round(seconds / 60)} min`;
  return seconds < 48 * HOUR ? `${Math.round(seconds / HOUR)} h` : `${Math.round(seconds / 24 / HOUR)} d`;
}

function short(value) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (value >= size) return `${+(value / size).toPrecision(3)} ${unit}`;
  return `${+value.toPrecision(3)}`;
}

// A reviver that keeps the digits of numbers beyond 53 bits, where the browser can.
const exact = (_, value, context) => typeof value === "number" && JSON.rawJSON && context ? JSON.rawJSON(context.source) : value;

async function ask(path, options = {}, reviver = undefined) {
  const headers = token ? {authorization: `Bearer ${token}`} : {};
  const answer = await fetch(path, {...options, headers}), body = JSON.parse(await answer.text(), reviver);
  if (!answer.ok) throw new Error([body.error, body.next].filter(Boolean).join(". "));
  return body;
}

function tiles(place, figures) {
  place.replaceChildren(...figures.filter(Boolean).map(([name, value, className = ""]) =>
    make("div", {className}, make("dt", {text: name}), make("dd", {text: value}))));
}

// Overview

const lags = stream => (stream.history || []).map(point => [point[0], point[3]]);
const rates = stream => (stream.history || []).map(point => [point[0], point[1] / STEP]);

// Plots show the last hour, or what there is of it: a job that started a moment ago fills them, too.
function period() {
  const end = Date.now() / 1000, first = Math.min(...streams.flatMap(one => (one.history || []).slice(0, 1).map(point => point[0])));
  return [Math.max(end - HOUR, Math.min(first, end - SHORTEST)), end];
}

function spark(points, name, [start, end]) {
  const NS = "http://www.w3.org/2000/svg", high = Math.max(1, ...points.map(point => point[1]));
  const svg = document.createElementNS(NS, "svg"), path = document.createElementNS(NS, "path");
  svg.setAttribute("viewBox", "0 0 360 100"); svg.setAttribute("preserveAspectRatio", "none"); svg.setAttribute("class", "spark");
  svg.setAttribute("role", "img"); svg.setAttribute("aria-label", `${name}: highest ${short(high)} in the last hour`);
  const at = points.map(([time, value]) => `${(360 * (time - start) / (end - start)).toFixed(1)} ${(97 - 92 * value / high).toFixed(1)}`);
  if (at.length > 1) path.setAttribute("d", `M${at[0].split(" ")[0]} 100 L${at.join(" L")} L${at[at.length - 1].split(" ")[0]} 100 Z`);
  svg.append(path);
  return svg;
}

function verdict(found) {
  if (!found) return ["not yet", "soft"];
  if (found.differences) return [`${number(found.differences)} differ`, "bad"];
  if (found.unjudged) return [`${number(found.unjudged)} not judged`, "soft"];
  return [`equal at ${clock(found.equal_up_to || found.at)}`, "good"];
}

function sorted() {
  const by = $("sort").value, wanted = $("filter").value.trim().toLowerCase();
  const state = stream => STATES.indexOf(stream.state);
  const order = {
    state: (a, b) => state(a) - state(b) || (b.lag || 0) - (a.lag || 0), stream: () => 0,
    lag: (a, b) => (b.lag || 0) - (a.lag || 0), rate: (a, b) => b.rate - a.rate, dead_letters: (a, b) => b.dead_letters - a.dead_letters,
  }[by];
  return streams
    .filter(one => !wanted || [one.stream, one.topic, one.table, one.state].some(text => (text || "").toLowerCase().includes(wanted)))
    .sort((a, b) => order(a, b) || a.stream.localeCompare(b.stream));
}

// A long name is broken behind its topic, not within a word.
const breakable = name => name.split(/(?<=:)/).flatMap(part => [part, document.createElement("wbr")]);

function row(stream, time) {
  const cell = (label, text, className = "") => make("td", {label, text, className});
  const [said, kind] = verdict(stream.compared);
  const named = make("td", {className: "stream"},
    make("a", {href: `#/stream/${encodeURIComponent(stream.stream)}`}, ...breakable(stream.stream)),
    stream.error ? make("small", {className: "error", text: stream.error}) : make("small", {text: stream.table ? `→ ${stream.table}` : stream.topic}));
  const line = make("tr", {},
    make("td", {label: "State"}, make("span", {className: `state ${stream.state}`, text: stream.state})), named,
    cell("Lag", number(stream.lag), "number"), make("td", {label: "Lag, last hour"}, spark(lags(stream), "Lag", time)),
    cell("Behind", span(stream.behind_seconds), "number"),
    cell("Records/s", short(stream.rate || 0), "number"), make("td", {label: "Records/s, last hour"}, spark(rates(stream), "Records per second", time)),
    cell("Dead letters", number(stream.dead_letters), "number" + (stream.dead_letters ? " bad" : "")), cell("Verified", said, kind));
  line.onclick = event => { if (!event.target.closest("a")) location.hash = `#/stream/${encodeURIComponent(stream.stream)}`; };
  return line;
}

function overview() {
  const sum = name => streams.reduce((total, one) => total + (one[name] || 0), 0);
  const bad = streams.filter(one => one.state === "stopped").length;
  const differing = streams.filter(one => one.compared && one.compared.differences).length;
  tiles($("totals"), [
    ["Streams", number(streams.length)], ["Stopped", number(bad), bad ? "bad" : ""], ["Lag", short(sum("lag"))],
    ["Records/s", short(sum("rate"))], ["Rows written", short(sum("rows"))],
    ["Dead letters", number(sum("dead_letters")), sum("dead_letters") ? "bad" : ""], ["Tables that differ", number(differing), differing ? "bad" : ""],
  ]);
  const body = $("streams").tBodies[0], focused = document.activeElement?.closest("#streams a")?.getAttribute("href"), found = sorted(), time = period();
  body.replaceChildren(...found.map(one => row(one, time)));
  if (focused) body.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  $("streams").hidden = !found.length; $("nothing").hidden = found.length > 0;
  $("nothing").textContent = streams.length ? "No stream matches the filter." : "The job has not opened a stream yet.";
}

// One stream

function chart(place, points, unit) {
  const style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue(name).trim();
  const axis = {stroke: colour("--soft"), grid: {stroke: colour("--line"), width: 1}, ticks: {stroke: colour("--line"), width: 1}, font: "12px system-ui"};
  const value = (_, one) => one === null || one === undefined ? "–" : `${one.toLocaleString("en", {maximumFractionDigits: 1})} ${unit}`;
  return new uPlot({
    width: place.clientWidth, height: 200, cursor: {y: false, points: {size: 7}},
    scales: {x: {time: true, range: period}, y: {range: (_, low, high) => [0, Math.max(1, high) * 1.05]}},
    axes: [{...axis, values: (_, times) => times.map(at => clock(at * 1000).slice(0, 5))}, {...axis, size: 56, values: (_, marks) => marks.map(short)}],
    series: [{label: "at", value: (_, at) => at === null ? "–" : clock(at * 1000)}, {label: unit, stroke: colour("--accent"), fill: colour("--fill"), width: 1.5, points: {show: false}, value}],
  }, points, place);
}

function columns(points) {
  return points.length ? [points.map(point => point[0]), points.map(point => point[1])] : [[Date.now() / 1000], [null]];
}

function plots(stream) {
  const rate = columns(rates(stream)), lag = columns(lags(stream));
  if (charts === null) charts = {rate: chart($("rate"), rate, "records/s"), lag: chart($("lag"), lag, "records")};
  else { charts.rate.setData(rate); charts.lag.setData(lag); }
}

function forget() {
  for (const one of Object.values(charts || {})) one.destroy();
  charts = null;
}

function stages(stream) {
  const found = Object.entries(stream.stages || {}), total = found.reduce((sum, [, seconds]) => sum + seconds, 0);
  $("bar").replaceChildren(...found.map(([name, seconds], at) => {
    const part = make("div", {className: `stage-${at % 6}`, title: name});
    part.style.width = `${100 * seconds / (total || 1)}%`;
    return part;
  }));
  $("stages").replaceChildren(...found.map(([name, seconds], at) =>
    make("li", {}, make("i", {className: `stage-${at % 6}`}), `${name} ${seconds.toFixed(1)} s (${Math.round(100 * seconds / (total || 1))} %)`)));
  if (!found.length) $("stages").replaceChildren(make("li", {className: "soft", text: "This job has not run a batch of the stream yet."}));
}

function comparison(found) {
  const [said, kind] = verdict(found);
  $("verdict").className = kind;
  $("verdict").textContent = !found ? "Not yet. Run ch_sink verify."
    : found.differences ? `${said}: ${number(found.missing)} missing, ${number(found.extra)} extra, ${number(found.different)} with other values, ${number(found.other)} signs, groups or columns (${clock(found.at)}, against the ${found.against}).`
      : found.unjudged ? `No difference from the ${found.against}, but ${number(found.unjudged)} rows could not be judged (${clock(found.at)}).`
        : `${number(found.rows)} rows are equal to the ${found.against} (${clock(found.equal_up_to || found.at)}).`;
}

function detail() {
  const stream = streams.find(one => one.stream === shown);
  $("name").textContent = shown;
  if (!stream) { $("state").className = "state"; $("state").textContent = streams.length ? "unknown to this job" : ""; return; }
  document.title = `${shown} · ch_sink`;
  $("state").className = `state ${stream.state}`; $("state").textContent = stream.state;
  $("path").textContent = `${stream.topic} → ${stream.table || "…"}`;
  $("problem").hidden = !stream.error; $("error").textContent = stream.error || ""; $("next").textContent = stream.next ? `Next: ${stream.next}` : "";
  tiles($("figures"), [
    ["Lag", number(stream.lag)], ["Behind", span(stream.behind_seconds)], ["Records/s", short(stream.rate || 0)],
    ["Rows written", short(stream.rows || 0)], ["Deletes", short(stream.deletes || 0)],
    ["Dead letters", number(stream.dead_letters), stream.dead_letters ? "bad" : ""],
    stream.waiting ? ["Waiting changes", number(stream.waiting), "warn"] : null,
    stream.backward_steps ? ["Steps back", number(stream.backward_steps), "warn"] : null,
    stream.retries ? ["Retries", number(stream.retries), "warn"] : null,
  ]);
  plots(stream); stages(stream); comparison(stream.compared);
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text, exact), null, 2); } catch { return text; }
}

function letter(one) {
  const head = make("summary", {}, make("strong", {text: `${one.partition}/${one.offset}`}), ` ${one.kind}${one.column ? ` (${one.column})` : ""}: ${one.reason}`);
  const body = make("div", {}, make("p", {className: "soft", text: new Date(one.time).toLocaleString("en-GB")}));
  if (one.value === undefined) body.append(make("p", {className: "soft", text: "Enter the token to see the record."}));
  else {
    const button = make("button", {type: "button", text: "Compare with the stored row"}), place = make("div", {role: "status"});
    button.onclick = () => difference(one, place);
    body.append(make("h3", {text: "Key"}), make("pre", {text: pretty(one.key ?? "null")}), make("h3", {text: "Value"}), make("pre", {text: pretty(one.value ?? "null")}), button, place);
  }
  return make("details", {className: "letter"}, head, body);
}

function payload(text) {
  const found = JSON.parse(text, exact);
  return found && found.payload !== undefined && found.schema !== undefined ? found.payload : found;
}

async function difference(one, place) {
  place.textContent = "Reading the row…";
  try {
    const key = payload(one.key), value = payload(one.value), wanted = (value && (value.after ?? (value.op === "d" ? null : value))) ?? null;
    const found = await ask(`api/explain/${encodeURIComponent(shown)}`, {method: "POST", body: JSON.stringify(key)}, exact);
    const stored = found.stored[0] || null;
    const names = [...new Set([...Object.keys(wanted || {}), ...Object.keys(stored || {})])];
    const body = make("tbody", {}, ...names.map(name => {
      const [left, right] = [wanted && name in wanted ? plain(wanted[name]) : "–", stored && name in stored ? plain(stored[name]) : "–"];
      return make("tr", {className: left === right || left === "–" ? "" : "changed"}, make("td", {className: "first", text: name}), make("td", {label: "Record", className: "record", text: left}), make("td", {label: "Stored", className: "record", text: right}));
    }));
    const headings = make("tr", {}, ...["Column", "Record", "Stored row"].map(text => make("th", {scope: "col", text})));
    place.replaceChildren(...(stored ? [] : [make("p", {text: "The table has no row of this key."})]), make("table", {className: "cards"}, make("thead", {}, headings), body));
  } catch (error) {
    place.textContent = error instanceof SyntaxError ? "The record is not JSON, so it cannot be compared here." : error.message;
  }
}

async function letters() {
  const wanted = shown;
  if (wanted === null) return;
  try {
    const found = (await ask(`api/dead-letters/${encodeURIComponent(wanted)}`)).dead_letters;
    if (wanted !== shown) return;
    $("letters").replaceChildren(...found.map(letter));
    if (!found.length) $("letters").replaceChildren(make("p", {className: "soft", text: "None."}));
    $("retry").hidden = !found.length;
  } catch (error) {
    $("letters").replaceChildren(make("p", {className: "error", text: error.message}));
  }
}

function event(one) {
  const cell = (label, text, className = "") => make("td", {label, text, className});
  return make("tr", {}, make("td", {className: "first", text: `${text(one.partition)}/${text(one.offset)}`}), cell("Event", text(one.op)), cell("Position", text(one.position)),
    cell("Rule", one.rule), cell("Why", one.why, "why"));
}

async function explain(submitted) {
  submitted.preventDefault();
  const wanted = shown;
  $("events").hidden = true; $("stored").replaceChildren(); $("answer").textContent = "Reading the topic…";
  try {
    const found = await ask(`api/explain/${encodeURIComponent(wanted)}`, {method: "POST", body: $("key").value}, exact);
    if (wanted !== shown) return;
    $("events").tBodies[0].replaceChildren(...found.events.map(event)); $("events").hidden = !found.events.length;
    $("answer").textContent = found.events.length ? "" : "The topic holds no event of this key.";
    $("stored").replaceChildren(...found.stored.map(one => make("pre", {text: JSON.stringify(one, null, 2)})));
  } catch (error) { if (wanted === shown) $("answer").textContent = error.message; }
}

async function retry() {
  $("retried").textContent = "Retrying…";
  try {
    const done = await ask(`api/dead-letters/${encodeURIComponent(shown)}/retry`, {method: "POST"});
    await letters();
    $("retried").textContent = Object.entries(done).map(([name, count]) => `${name.replaceAll("_", " ")}: ${count}`).join(", ");
  } catch (error) { $("retried").textContent = error.message; }
}

// The whole

function show() {
  const count = state => streams.filter(one => one.state === state).length;
  $("summary").textContent = STATES.filter(count).map(state => `${count(state)} ${state}`).join(", ") || "No stream yet";
  if (shown === null) overview(); else detail();
}

function route() {
  const place = /^#\/stream\/(.+)$/.exec(location.hash), wanted = place ? decodeURIComponent(place[1]) : null;
  if (wanted !== shown) {
    shown = wanted; forget();
    for (const id of ["answer", "retried"]) $(id).textContent = "";
    $("events").hidden = true; $("stored").replaceChildren(); $("letters").replaceChildren();
    window.scrollTo(0, 0);
  }
  $("overview").hidden = shown !== null; $("stream").hidden = shown === null;
  if (shown === null) document.title = "ch_sink"; else letters();
  show();
}

async function look() {
  try {
    streams = (await ask("api/streams")).streams;
    $("unreachable").hidden = true; show();
  } catch (error) {
    $("unreachable").hidden = false; $("unreachable").textContent = `The job does not answer: ${error.message}`;
  }
  setTimeout(look, REFRESH);
}

$("unlock").onclick = () => { $("token").value = token; $("dialog").showModal(); };
$("dialog").onclose = () => {
  token = $("dialog").returnValue === "forget" ? "" : $("token").value.trim();
  $("unlock").textContent = token ? "Token set" : "Enter token";
  letters();
};
$("ask").onsubmit = explain; $("retry").onclick = retry; $("filter").oninput = $("sort").onchange = overview;
window.addEventListener("hashchange", route);
window.addEventListener("resize", () => { for (const name of ["rate", "lag"]) charts?.[name].setSize({width: $(name).clientWidth, height: 200}); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { forget(); show(); });
route(); look();
