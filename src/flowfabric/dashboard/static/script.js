// Reads the page again when one of its topics changes, counts leases down, copies texts, and
// handles keys. Every page works without this script.
"use strict";

// Without news, a page is read again after this time: heartbeats and limits make no events.
const QUIET = 15000;
// After each read, a page waits this long, and longer if the server took long.
const PAUSE = 3000;
const POLITE = 20;
// Once the page listens, it is read again: something may have changed before.
const FIRST = 1000;

let isPaused = false;
let link = "live";
let isReading = false;
let isStale = false;
let readAgainAt = Date.now() + FIRST;
let quiet = 0;
// How far the clock of the database is ahead of ours.
let skew = 0;

function main() {
  return document.querySelector("main[data-live]");
}

function isBusy() {
  // Do not refresh while the reader types or chooses something.
  const at = document.activeElement;
  if (at && at.matches("input, textarea, select, main button, main summary")) return true;
  const isChosen = (one) => one.selectedIndex !== Math.max(0, [...one.options].findIndex((o) => o.defaultSelected));
  return (
    [...document.querySelectorAll("main input:not([type=hidden]), main textarea")].some(
      (one) => one.value !== one.defaultValue
    ) || [...document.querySelectorAll("main select")].some(isChosen)
  );
}

async function refresh() {
  const old = main();
  rest();
  if (!old || document.hidden || isPaused || isReading || isBusy()) return;
  isReading = true;
  isStale = false;
  const began = performance.now();
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.redirected || answer.status === 401) location.reload();
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("main[data-live]");
    if (!fresh || isBusy()) return;
    replace(old, fresh);
    const foot = page.querySelector("footer time");
    if (foot) document.querySelector("footer time").replaceWith(foot);
    setClock();
    document.title = page.title;
  } finally {
    isReading = false;
    const took = performance.now() - began;
    readAgainAt = Date.now() + PAUSE + POLITE * took;
    if (isStale) soon();
  }
}

// Replace only the parts that differ, so that opened, chosen and scrolled parts stay.
function replace(old, fresh) {
  const touched = [...old.querySelectorAll("details")].filter((one) => one.open !== one.wasOpen);
  const opened = new Map(touched.map((one) => [titleOf(one), one.open]));
  const chosen = rows().findIndex((row) => row.classList.contains("chosen"));
  const parts = partsOf(old);
  const news = partsOf(fresh);
  if (parts.length !== news.length) old.replaceChildren(...fresh.children);
  else
    parts.forEach((part, n) => {
      const kept = part.querySelector("[data-stream]") || part.matches("[data-stream]");
      if (kept || part.outerHTML === news[n].outerHTML) return;
      const { scrollLeft, scrollTop } = part;
      part.replaceWith(news[n]);
      Object.assign(news[n], { scrollLeft, scrollTop });
    });
  noteOpen();
  old.querySelectorAll("details").forEach((one) => {
    if (opened.has(titleOf(one))) one.open = opened.get(titleOf(one));
  });
  if (chosen >= 0) choose(chosen, false);
  countDown();
  offerCopies();
}

// The parts of a page: its sections, also those that stand in columns on a wide screen.
function partsOf(at) {
  return [...at.children].flatMap((one) => (one.matches(".columns, .columns > div") ? partsOf(one) : [one]));
}

// Remember what the server has opened, to know what the reader has opened or closed.
function noteOpen() {
  for (const one of document.querySelectorAll("details")) one.wasOpen ??= one.open;
}

function titleOf(details) {
  const summary = details.querySelector("summary");
  const all = [...document.querySelectorAll("details")];
  return summary ? summary.textContent.trim() : String(all.indexOf(details));
}

function rest() {
  clearTimeout(quiet);
  quiet = setTimeout(soon, QUIET);
}

function soon() {
  isStale = true;
  setTimeout(() => isStale && refresh().catch(() => undefined), Math.max(0, readAgainAt - Date.now()));
}

function listen() {
  const at = main();
  if (!at || !at.dataset.live || !window.EventSource) return;
  const query = at.dataset.live.split(" ").map((one) => `topic=${encodeURIComponent(one)}`);
  const source = new EventSource(`${document.body.dataset.root}/live?${query.join("&")}`);
  source.addEventListener("open", () => {
    tell("live");
    soon();
  });
  source.addEventListener("changed", soon);
  source.addEventListener("error", () => tell("not live, tries again"));
}

// A wide picture begins in its middle, where the first nodes are.
function centre() {
  for (const one of document.querySelectorAll(".picture")) one.scrollLeft = (one.scrollWidth - one.clientWidth) / 2;
}

function tell(text) {
  link = text;
  document.querySelector("footer .live").textContent = isPaused ? "paused" : link;
}

function follow() {
  for (const box of document.querySelectorAll("[data-stream]")) {
    const since = box.dataset.since ? `?since=${encodeURIComponent(box.dataset.since)}` : "";
    const source = new EventSource(box.dataset.stream + since);
    source.addEventListener("frame", (event) => {
      const frame = JSON.parse(event.data);
      const line = document.createElement("p");
      const kind = document.createElement("span");
      kind.className = "note";
      kind.textContent = frame.kind;
      const text = typeof frame.data === "string" ? frame.data : JSON.stringify(frame.data);
      line.append(kind, " " + text);
      box.append(line);
      box.scrollTop = box.scrollHeight;
    });
    source.addEventListener("end", () => source.close());
    source.addEventListener("error", () => source.readyState === 2 && source.close());
  }
}

function setClock() {
  const now = document.querySelector("footer time");
  if (now) skew = new Date(now.dateTime) - Date.now();
}

function countDown() {
  for (const one of document.querySelectorAll("time[data-countdown]")) {
    const left = Math.round((new Date(one.dateTime) - Date.now() - skew) / 1000);
    one.textContent = left > 0 ? `in ${left} s` : "now";
  }
}

function offerCopies() {
  for (const one of document.querySelectorAll("pre[data-copy]:not(.has-copy)")) {
    one.classList.add("has-copy");
    const button = document.createElement("button");
    button.textContent = "Copy";
    button.type = "button";
    const text = one.textContent;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    });
    one.append(button);
  }
}

// Suggest words for the last word of the filter: a datalist by itself completes the whole text.
function suggest(field) {
  const list = field.list;
  list.words ??= [...list.options].map((one) => one.value);
  const before = field.value.slice(0, field.value.lastIndexOf(" ") + 1);
  const found = list.words.filter((word) => word.startsWith(field.value.slice(before.length)));
  list.replaceChildren(
    ...found.map((word) => {
      const option = document.createElement("option");
      option.value = before + word;
      return option;
    })
  );
}

// What j and k choose: the rows of lists, and the cards of pages without lists.
function rows() {
  return [...document.querySelectorAll("table.rows tbody tr, .cards > .card")].filter((row) => !row.querySelector(".empty"));
}

// Open a chosen row: follow its first link, or go to its first control.
function enter(row) {
  const lead = row.querySelector("a, summary, input:not([type=hidden]), select, button");
  if (!lead) return;
  lead.focus();
  if (lead.matches("a, summary")) lead.click();
}

function choose(number, scroll = true) {
  const all = rows();
  if (!all.length) return;
  all.forEach((row) => row.classList.remove("chosen"));
  const row = all[Math.max(0, Math.min(number, all.length - 1))];
  row.classList.add("chosen");
  if (scroll) row.scrollIntoView({ block: "nearest" });
}

let isGoing = false;
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const now = rows().findIndex((row) => row.classList.contains("chosen"));
  if (isGoing) {
    isGoing = false;
    const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
    if (link) link.click();
    return;
  }
  if (event.key === "g") isGoing = true;
  else if (event.key === "j") choose(now + 1);
  else if (event.key === "k") choose(now - 1);
  else if (event.key === "Enter" && now >= 0 && !event.target.closest("a, button, summary")) enter(rows()[now]);
  else if (event.key === "?") document.querySelector("#keys").showModal();
  else if (event.key === "p") {
    isPaused = !isPaused;
    tell(link);
    if (!isPaused) soon();
  } else if (event.key === "/") {
    const field = document.querySelector("#where");
    event.preventDefault();
    if (field) field.focus();
    else location.assign(`${document.body.dataset.root}/executions#where`);
  }
});

document.addEventListener("focusout", () => isStale && soon());
document.addEventListener("visibilitychange", () => document.hidden || soon());
setInterval(countDown, 1000);
document.addEventListener("input", (event) => event.target.id === "where" && suggest(event.target));
if (location.hash === "#where" && document.querySelector("#where")) document.querySelector("#where").focus();
rest();
setClock();
noteOpen();
countDown();
offerCopies();
centre();
listen();
follow();
