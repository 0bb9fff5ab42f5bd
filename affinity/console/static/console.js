"use strict";
// Times in the zone of the browser, and live pages: the server sends the page again when it has changed, after each read of
// the database its age, and what the wake of a conversation says as it comes. A page that is older than MAX_AGE says so.
(() => {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

  function relative(seconds) { // until then
    const [unit, size] = units.find(([, length]) => Math.abs(seconds) >= length) || units[3];
    const number = `${Math.round(Math.abs(seconds) / size)} ${unit}`;
    return seconds > 0 ? `in ${number}` : `${number} ago`;
  }

  function clock(at) { // the time of the day, with the day unless it is today
    const isToday = at.toDateString() === new Date().toDateString();
    const day = isToday ? {} : { weekday: "short", day: "numeric", month: "short" };
    return at.toLocaleString(undefined, { ...day, hour: "2-digit", minute: "2-digit" });
  }

  function showTimes() {
    for (const each of document.querySelectorAll("time[datetime]")) {
      const at = new Date(each.dateTime);
      const ago = relative((at - Date.now()) / 1000);
      const isExact = each.classList.contains("exact");
      each.title = isExact ? ago : at.toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" });
      if (each.classList.contains("clock")) each.textContent = `${clock(at)} (${ago})`;
      else if (!isExact) each.textContent = ago;
    }
  }

  const isBusy = (main) => {
    const active = document.activeElement;
    const edits = active && main.contains(active) && active.matches("input, select, textarea");
    return edits || Boolean(main.querySelector("form [data-edited]"));
  };

  const MAX_AGE = 5000; // milliseconds without a read
  const SILENCE = 20000; // after which the connection is made again
  const banner = document.getElementById("stale");
  const live = document.getElementById("live");
  let shownAt = Date.now(); // when what is shown was read
  let heardAt = Date.now(); // when the server sent the last event, or the connection was begun
  let isHeard = false; // since then
  let problem = ""; // that the server has named
  let waiting = null; // the newest page and when it was read, while a form is edited

  function takePage(html) {
    waiting = { html, at: Date.now() };
    showWaiting();
  }

  function takeAge(seconds) {
    const at = Date.now() - 1000 * seconds;
    problem = "";
    if (waiting) waiting.at = at;
    else shownAt = at;
    showAge();
  }

  function showWaiting() {
    if (!waiting || isBusy(document.querySelector("main"))) return;
    const { html, at } = waiting;
    waiting = null;
    shownAt = at;
    replaceMain(html);
  }

  function whyOld(age) {
    if (waiting && !problem) return "A form is being edited, so this page is not renewed.";
    if (problem) return problem;
    if (!source || source.readyState === EventSource.CONNECTING) return age > MAX_AGE ? "Not connected to the console." : "";
    if (source.readyState === EventSource.CLOSED) return "The console does not answer, or it has ended your login: load the page again.";
    return age > MAX_AGE ? "Nothing was read for a while." : "";
  }

  function showAge() {
    const age = Date.now() - shownAt;
    const why = whyOld(age);
    const [text, since, button] = banner.children;
    banner.hidden = !why;
    document.querySelector("main").classList.toggle("old", Boolean(why));
    live.textContent = why ? "not live" : isHeard ? "live" : "";
    live.dataset.state = why ? "old" : "live";
    if (text.textContent !== why) text.textContent = why;
    const at = new Date(shownAt).toLocaleTimeString();
    since.textContent = why && `What is shown is from ${at}, ${relative(-age / 1000)}.`;
    button.hidden = !why || !waiting;
  }

  function replaceMenu(page) { // what waits, in links that stay: one may have the focus
    for (const name of ["#nav a", ".menu"]) {
      const fresh = page.querySelectorAll(name);
      document.querySelectorAll(name).forEach((each, place) => {
        if (fresh[place] && each.innerHTML !== fresh[place].innerHTML) each.innerHTML = fresh[place].innerHTML;
      });
    }
  }

  function showCopy() {
    for (const each of document.querySelectorAll(".copy[hidden]")) each.hidden = !navigator.clipboard;
  }

  function replaceMain(html) {
    const page = new DOMParser().parseFromString(html, "text/html");
    const fresh = page.querySelector("main");
    const main = document.querySelector("main");
    if (!fresh) return;
    for (const each of main.querySelectorAll("details[open][id]")) {
      const same = fresh.querySelector(`#${CSS.escape(each.id)}`);
      if (same) same.open = true;
    }
    const focused = main.contains(document.activeElement) && document.activeElement.getAttribute("href");
    const scroll = [...main.querySelectorAll("pre")].map((each) => each.scrollTop);
    main.replaceWith(fresh);
    replaceMenu(page);
    showSaid(Boolean(fresh.querySelector("#streamed")));
    if (focused) fresh.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    [...fresh.querySelectorAll("pre")].forEach((each, place) => { each.scrollTop = scroll[place] || 0; });
    showTimes();
    showCopy();
  }

  let known = ""; // all of it that has come
  let said = null; // by the wake that runs: its text, and whether it is said, replaced by entries, or retracted

  function showSaid(isOld) { // a page that still has what was replaced is an old one
    if (said?.state === "replaced" && !isOld) said = null;
    const list = document.querySelector(".transcript");
    if (!said || !list) return;
    if (!document.getElementById("streamed")) {
      const blank = document.getElementById("streaming");
      if (!blank) return;
      list.append(blank.content.cloneNode(true));
    }
    const item = document.getElementById("streamed");
    item.classList.toggle("retracted", said.state === "retracted");
    item.querySelector("pre").textContent = said.text;
  }

  function takeSaid(data) {
    const piece = JSON.parse(data);
    known = piece.text ?? known + piece.more;
    said = { state: piece.state, text: known };
    showSaid(true);
    if (said.state === "replaced") setTimeout(forget, 2000, said);
  }

  function forget(replaced) { // the page with the entries came before, or has come since
    if (said !== replaced || isBusy(document.querySelector("main"))) return;
    said = null;
    document.getElementById("streamed")?.remove();
  }

  let source = null;

  function connect() {
    if (source || document.hidden) return;
    source = new EventSource(location.href);
    const on = (name, take) => source.addEventListener(name, (event) => {
      [heardAt, isHeard] = [Date.now(), true];
      take(event.data);
    });
    [heardAt, isHeard] = [Date.now(), false];
    source.onopen = () => { said = null; };
    source.onerror = showAge;
    on("message", takePage);
    on("current", takeAge);
    on("stale", (data) => { problem = JSON.parse(data); showAge(); });
    on("stream", takeSaid);
    on("gone", () => location.reload());
  }

  function disconnect() {
    source?.close();
    source = null;
  }

  function watch() { // a connection that is dead, or was refused
    if (Date.now() - heardAt > SILENCE) disconnect();
    connect();
    showWaiting();
    if (!document.hidden) showAge();
  }

  banner.querySelector("button").addEventListener("click", () => {
    for (const each of document.querySelectorAll("main [data-edited]")) each.removeAttribute("data-edited");
    document.activeElement?.blur();
    showWaiting();
    showAge();
  });
  document.addEventListener("click", async (event) => {
    const copy = event.target.closest(".copy");
    if (!copy) return;
    await navigator.clipboard.writeText(copy.previousElementSibling.value);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy id"; }, 2000);
  });
  document.addEventListener("input", (event) => event.target.setAttribute("data-edited", ""));
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : watch()));
  window.addEventListener("pagehide", disconnect);
  const local = document.getElementById("local"); // exact times in the zone of the browser
  const address = new URL(location.href);
  local.textContent = Intl.DateTimeFormat().resolvedOptions().timeZone;
  address.searchParams.set("times", local.textContent);
  [local.href, local.hidden] = [address.pathname + address.search, false];

  setInterval(() => { showTimes(); watch(); }, 1000);
  showTimes();
  showCopy();
  connect();
})();
