// Refreshes the page in place, counts leases down, and answers keys. Every page works without it.
"use strict";

const PERIOD = 3000;

async function refresh() {
  const main = document.querySelector("main[data-live]");
  const isWriting = document.activeElement && document.activeElement.matches("input, button, summary");
  if (!main || document.hidden || isWriting) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector("main[data-live]");
  if (!fresh) return;
  // What the reader has opened stays open.
  const opened = [...main.querySelectorAll("details")].map((one) => one.open);
  const chosen = rows().findIndex((row) => row.classList.contains("chosen"));
  main.replaceChildren(...fresh.childNodes);
  main.querySelectorAll("details").forEach((one, n) => {
    if (n < opened.length) one.open = opened[n];
  });
  if (chosen >= 0) choose(chosen);
  const foot = page.querySelector("footer time");
  if (foot) document.querySelector("footer time").replaceWith(foot);
}

function countDown() {
  for (const one of document.querySelectorAll("time[data-countdown]")) {
    const left = Math.round((new Date(one.dateTime) - Date.now()) / 1000);
    one.textContent = left > 0 ? `in ${left} s` : "it is over";
  }
}

function rows() {
  return [...document.querySelectorAll("table.rows tbody tr")].filter((row) => row.querySelector("a"));
}

function choose(number) {
  const all = rows();
  if (!all.length) return;
  all.forEach((row) => row.classList.remove("chosen"));
  const row = all[Math.max(0, Math.min(number, all.length - 1))];
  row.classList.add("chosen");
  row.scrollIntoView({ block: "nearest" });
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
  else if (event.key === "Enter" && now >= 0) rows()[now].querySelector("a").click();
  else if (event.key === "/") {
    const field = document.querySelector("#where");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
});

setInterval(() => refresh().catch(() => undefined), PERIOD);
setInterval(countDown, 1000);
countDown();
